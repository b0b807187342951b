/* Threads that compute members of calls while the caller goes on; none on Windows.
 *
 * A job is a call whose members the threads take one by one. `population_pool_finish` takes what is left itself, then
 * waits for the others. All fields but `thread` are guarded by `lock`; only the thread that made the pool uses it.
 */
#if !defined(_WIN32)
#include <pthread.h>
#include <stdlib.h>

enum { MAX_JOBS = 64, MAX_CALL = 1024, MAX_THREADS = 256 };

_Static_assert(sizeof(SoftActorCritic) <= MAX_CALL && sizeof(TeamActorCritic) <= MAX_CALL &&
                   sizeof(ActorCritic) <= MAX_CALL && sizeof(PolicyGradient) <= MAX_CALL &&
                   sizeof(TemporalDifference) <= MAX_CALL && sizeof(Forward) <= MAX_CALL,
               "a call is copied for every member");

typedef int64_t (*Run)(const void *call, int64_t vector, int64_t is_float64);

/* `call` begins with its Rows; rooms: one for each thread, the caller's first; next: member to take; left: not computed. */
typedef struct {
  Run run;
  const void *call;
  void **rooms;
  int64_t size, vector, is_float64, next, end, left;
} Job;

typedef struct Pool Pool;

typedef struct {
  Pool *pool;
  int64_t number;
  pthread_t handle;
} Thread;

struct Pool {
  pthread_mutex_t lock;
  pthread_cond_t has_work, is_done;
  Job jobs[MAX_JOBS];
  int64_t count, threads, is_ending;
  Thread thread[MAX_THREADS];
};

/* Compute one member as thread `number`, if one is left; called with the lock, which is released meanwhile. */
static int pool_takes(Pool *pool, int64_t number) {
  for (int64_t i = 0; i < pool->count; i++) {
    Job *job = &pool->jobs[i];
    if (job->next == job->end) continue;
    _Alignas(16) char call[MAX_CALL];
    Rows *rows = (Rows *)call;
    memcpy(call, job->call, (size_t)job->size);
    rows->begin = job->next++, rows->end = job->next, rows->room = job->rooms[number];
    Run run = job->run;
    int64_t vector = job->vector, is_float64 = job->is_float64;
    pthread_mutex_unlock(&pool->lock);
    run(call, vector, is_float64);
    pthread_mutex_lock(&pool->lock);
    if (!--job->left) pthread_cond_signal(&pool->is_done);
    return 1;
  }
  return 0;
}

static void *pool_works(void *argument) {
  Thread *thread = argument;
  Pool *pool = thread->pool;
  pthread_mutex_lock(&pool->lock);
  while (!pool->is_ending)
    if (!pool_takes(pool, thread->number)) pthread_cond_wait(&pool->has_work, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

/* Wait until all jobs are done; the caller takes part. */
EXPORT void population_pool_finish(Pool *pool) {
  pthread_mutex_lock(&pool->lock);
  while (pool_takes(pool, 0)) continue;
  for (int64_t i = 0; i < pool->count; i++)
    while (pool->jobs[i].left) pthread_cond_wait(&pool->is_done, &pool->lock);
  pool->count = 0;
  pthread_mutex_unlock(&pool->lock);
}

/* Begin a call of `size` bytes, which must stay as it is until `population_pool_finish`. */
EXPORT void population_pool_begin(Pool *pool, Run run, const void *call, int64_t size, void **rooms, int64_t vector,
                                  int64_t is_float64) {
  const Rows *rows = call;
  if (pool->count == MAX_JOBS) population_pool_finish(pool);
  pthread_mutex_lock(&pool->lock);
  pool->jobs[pool->count++] =
      (Job){run, call, rooms, size, vector, is_float64, rows->begin, rows->end, rows->end - rows->begin};
  pthread_cond_broadcast(&pool->has_work);
  pthread_mutex_unlock(&pool->lock);
}

/* End the threads and free the pool. */
EXPORT void population_pool_free(Pool *pool) {
  population_pool_finish(pool);
  pthread_mutex_lock(&pool->lock);
  pool->is_ending = 1;
  pthread_cond_broadcast(&pool->has_work);
  pthread_mutex_unlock(&pool->lock);
  for (int64_t i = 0; i < pool->threads; i++) pthread_join(pool->thread[i].handle, NULL);
  pthread_cond_destroy(&pool->is_done);
  pthread_cond_destroy(&pool->has_work);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

/* Start `threads` threads, or as many as the system gives; null if it gives none. */
EXPORT Pool *population_pool(int64_t threads) {
  Pool *pool = calloc(1, sizeof(Pool));
  if (!pool) return NULL;
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->has_work, NULL);
  pthread_cond_init(&pool->is_done, NULL);
  for (; pool->threads < threads && pool->threads < MAX_THREADS - 1; pool->threads++) {
    Thread *thread = &pool->thread[pool->threads];
    thread->pool = pool, thread->number = pool->threads + 1;
    if (pthread_create(&thread->handle, NULL, pool_works, thread)) break;
  }
  if (pool->threads) return pool;
  population_pool_free(pool);
  return NULL;
}
#endif
