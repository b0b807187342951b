/* Updates of deterministic actors: DDPG (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1) with one critic, TD3
 * (Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1) with two. */

/* Networks of one critic (encoder: null if it reads features of the actor), and where their results lie. */
typedef struct {
  const Member *encoder, *head;
  NAME(Kept) features[MAX_DEPTH], values[MAX_DEPTH];
  REAL *read; /* inputs of the head [F + A][columns] */
} NAME(Critic);

static int64_t NAME(larger)(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t NAME(ac_widest)(const ActorCritic *call, int64_t n) {
  int64_t widest = NAME(widest)(call->actor + n), members = call->rows.members;
  for (int64_t k = 0; k < call->twins; k++) {
    if (!call->shared) widest = NAME(larger)(widest, NAME(widest)(call->encoder + k * members + n));
    widest = NAME(larger)(widest, NAME(widest)(call->head + k * members + n));
  }
  return widest;
}

static inline int64_t NAME(ac_room)(const ActorCritic *call, int64_t n) {
  int64_t columns = PADDED(call->batch), widest = NAME(ac_widest)(call, n), members = call->rows.members;
  int64_t kept = 0, read = 0, gradient = NAME(gradient_size)(call->actor + n);
  for (int64_t k = 0; k < call->twins; k++) {
    const Member *encoder = call->shared ? 0 : call->encoder + k * members + n, *head = call->head + k * members + n;
    kept = NAME(larger)(kept, (encoder ? NAME(kept_size)(encoder, columns) : 0) + NAME(kept_size)(head, columns));
    read = NAME(larger)(read, head->layers[0].in * columns);
    if (encoder) gradient = NAME(larger)(gradient, NAME(gradient_size)(encoder));
    gradient = NAME(larger)(gradient, NAME(gradient_size)(head));
  }
  return 2 * call->inputs * columns + NAME(kept_size)(call->actor + n, columns) + kept + read +
         2 * call->actions * columns + 2 * widest * columns + PADDED(widest) * columns + gradient + 6 * columns + 64;
}

/* Q(s, a) of `row` for inputs [I][columns] and actions [A][columns]; returns the values [columns].
 *
 * features [F][columns]: of the actor, for a critic without an encoder. */
static const REAL *NAME(critic_forward)(NAME(Critic) *critic, const REAL *row, const REAL *obs, const REAL *features,
                                        const REAL *action, int64_t actions, int64_t columns, REAL *spare) {
  int64_t width = critic->head->layers[0].in - actions;
  if (critic->encoder) {
    NAME(forward)(critic->encoder, row, obs, columns, critic->features, spare);
    features = critic->features[critic->encoder->depth - 1].outputs;
  }
  memcpy(critic->read, features, (size_t)(width * columns) * sizeof(REAL));
  memcpy(critic->read + width * columns, action, (size_t)(actions * columns) * sizeof(REAL));
  NAME(forward)(critic->head, row, critic->read, columns, critic->values, spare);
  return critic->values[critic->head->depth - 1].outputs;
}

static void NAME(ac_member)(const ActorCritic *call, int64_t n) {
  const Rows *rows = &call->rows, *others = &call->critics;
  const Member *actor = call->actor + n;
  int64_t members = rows->members, batch = call->batch, columns = PADDED(batch), inputs = call->inputs;
  int64_t actions = call->actions, widest = NAME(ac_widest)(call, n);
  REAL *value = (REAL *)rows->value + n * rows->stride, *target = (REAL *)rows->target + n * rows->stride;
  REAL *first = (REAL *)rows->first + n * rows->stride, *second = (REAL *)rows->second + n * rows->stride;
  REAL *obs = rows->room, *next_obs = obs + inputs * columns, *room = next_obs + inputs * columns;
  NAME(Kept) kept[MAX_DEPTH];
  NAME(lay_out)(actor, columns, room, kept), room += NAME(kept_size)(actor, columns);
  REAL *taken = room, *next_action = taken + actions * columns, *goals = next_action + actions * columns;
  REAL *losses = goals + columns, *spare = losses + columns, *grad = spare + 2 * columns;
  REAL *other = grad + widest * columns, *turned = other + widest * columns;
  REAL *of_critic = turned + PADDED(widest) * columns; /* critics follow one another here */
  REAL tau = (REAL)call->tau[n];
  for (int64_t u = 0; u < call->updates; u++) {
    int64_t number = u * members + n, at = number * batch;
    const REAL *weight = (const REAL *)call->weight + at, *reward = (const REAL *)call->reward + at;
    const REAL *discount = (const REAL *)call->discount + at;
    REAL *error = (REAL *)call->error + at, loss = 0;
    int moves = (call->number + u) % call->policy_interval == 0;
    NAME(load_rows)((const REAL *)call->obs + at * inputs, batch, inputs, columns, obs);
    NAME(load_rows)((const REAL *)call->next_obs + at * inputs, batch, inputs, columns, next_obs);
    NAME(load_rows)((const REAL *)call->action + at * actions, batch, actions, columns, taken);
    NAME(forward)(actor, target, next_obs, columns, kept, spare);
    memcpy(next_action, kept[actor->depth - 1].outputs, (size_t)(actions * columns) * sizeof(REAL));
    if (call->smoothing) {
      const REAL *normal = (const REAL *)call->smoothing + at * actions;
      REAL std = (REAL)call->noise[n], limit = (REAL)call->limit[n], low = (REAL)call->low, high = (REAL)call->high;
      for (int64_t a = 0; a < actions; a++)
        for (int64_t b = 0; b < batch; b++) {
          REAL moved = normal[b * actions + a] * std;
          moved = moved > limit ? limit : moved;
          moved = next_action[a * columns + b] + (moved < -limit ? -limit : moved);
          moved = moved < low ? low : moved;
          next_action[a * columns + b] = moved > high ? high : moved;
        }
    }
    for (int64_t pass = 0; pass < 2 * call->twins + moves; pass++) { /* targets, critics, policy */
      int64_t k = pass < 2 * call->twins ? pass % call->twins : 0, place = k * members + n;
      NAME(Critic) critic = {.encoder = call->shared ? 0 : call->encoder + place, .head = call->head + place};
      REAL *row = (REAL *)others->value + place * others->stride, *of_row = of_critic;
      if (critic.encoder) {
        NAME(lay_out)(critic.encoder, columns, of_row, critic.features);
        of_row += NAME(kept_size)(critic.encoder, columns);
      }
      NAME(lay_out)(critic.head, columns, of_row, critic.values), of_row += NAME(kept_size)(critic.head, columns);
      critic.read = of_row;
      REAL *gradient = of_row + critic.head->layers[0].in * columns;
      if (pass == 2 * call->twins || (call->shared && pass == call->twins))
        NAME(forward)(actor, value, obs, columns, kept, spare);
      const REAL *features = call->shared ? kept[call->shared - 1].outputs : 0; /* of next_obs at first */
      if (pass < call->twins) { /* y = r + discount min Q */
        REAL *of_target = (REAL *)others->target + place * others->stride;
        const REAL *q = NAME(critic_forward)(&critic, of_target, next_obs, features, next_action, actions, columns, spare);
        for (int64_t b = 0; b < batch; b++) goals[b] = pass && !(q[b] < goals[b] || q[b] != q[b]) ? goals[b] : q[b];
        for (int64_t b = 0; b < batch && pass == call->twins - 1; b++) goals[b] = FMA(discount[b], goals[b], reward[b]);
        continue;
      }
      for (int64_t b = 0; b < columns; b++) losses[b] = grad[b] = 0;
      if (pass < 2 * call->twins) { /* the squared error */
        const REAL *q = NAME(critic_forward)(&critic, row, obs, features, taken, actions, columns, spare);
        for (int64_t b = 0; b < batch; b++) {
          REAL off = q[b] - goals[b], weighted = off * weight[b], size = off < 0 ? -off : off;
          losses[b] = weighted * off, grad[b] = weighted + weighted;
          error[b] = k && !(size > error[b] || size != size) ? error[b] : size;
        }
        loss += NAME(row_sum)(losses, columns);
        NAME(Rate) rate;
        NAME(next_step)(others, place, &rate);
        REAL *at_features = NAME(backward)(critic.head, row, critic.read, columns, critic.values, grad, other, turned,
                                           gradient, spare, critic.encoder ? critic.head->layers[0].in : 0);
        REAL *free = at_features == grad ? other : grad;
        REAL *moments = (REAL *)others->first + place * others->stride;
        REAL *squares = (REAL *)others->second + place * others->stride;
        NAME(descend)(critic.head, &rate, gradient, row, moments, squares);
        if (critic.encoder) {
          NAME(backward)(critic.encoder, row, obs, columns, critic.features, at_features, free, turned, gradient, spare,
                         0);
          NAME(descend)(critic.encoder, &rate, gradient, row, moments, squares);
        }
        continue;
      }
      const REAL *chosen = kept[actor->depth - 1].outputs;
      const REAL *q = NAME(critic_forward)(&critic, row, obs, features, chosen, actions, columns, spare);
      for (int64_t b = 0; b < batch; b++) losses[b] = weight[b] * q[b], grad[b] = -weight[b];
      ((REAL *)call->actor_loss)[number] = -NAME(row_sum)(losses, columns);
      REAL *at_action = NAME(backward)(critic.head, row, critic.read, columns, critic.values, grad, other, turned, 0,
                                       spare, actions);
      NAME(Rate) rate;
      NAME(next_step)(rows, n, &rate);
      NAME(backward)(actor, value, obs, columns, kept, at_action, at_action == grad ? other : grad, turned, gradient,
                     spare, 0);
      NAME(descend)(actor, &rate, gradient, value, first, second);
      NAME(track)(actor, tau, value, target);
    }
    ((REAL *)call->loss)[number] = loss;
    for (int64_t k = 0; k < call->twins && (moves || !call->tracks_with_policy); k++) {
      int64_t place = k * members + n, from = place * others->stride;
      if (!call->shared)
        NAME(track)(call->encoder + place, tau, (REAL *)others->value + from, (REAL *)others->target + from);
      NAME(track)(call->head + place, tau, (REAL *)others->value + from, (REAL *)others->target + from);
    }
  }
}

static void NAME(ac)(const ActorCritic *call) {
  for (int64_t n = call->rows.begin; n < call->rows.end; n++)
    if (!call->live || call->live[n]) NAME(ac_member)(call, n);
}
