/* Whole updates of populations of small networks, and outputs of their policies: no torch types, a plain C interface
 * (population.h).
 *
 * Every member is computed by itself, in a fixed order, so that the bits of its results depend neither on who else is in
 * a call, nor on how many updates or rows of outputs a call makes, nor on the width of a vector.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "population.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define PADDED(n) (((n) + 15) / 16 * 16)

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined(__x86_64__) || defined(_M_X64)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,prefer-vector-width=256")
#endif
#define VECTOR 256
#include "real.h"
#define DOUBLE
#include "real.h"
#undef DOUBLE
#undef VECTOR
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,prefer-vector-width=512")
#endif
#define VECTOR 512
#include "real.h"
#define DOUBLE
#include "real.h"
#undef DOUBLE
#undef VECTOR
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#elif defined(__aarch64__)
#define VECTOR 128
#include "real.h"
#define DOUBLE
#include "real.h"
#undef DOUBLE
#undef VECTOR
#endif

EXPORT int64_t population_abi(void) { return POPULATION_ABI; }

/* Widths of vectors that this processor has, as a sum of 128, 256 and 512; 0 where the kernels cannot run. */
EXPORT int64_t population_vectors(void) {
#if defined(__x86_64__) || defined(_M_X64)
  /* Asked of the processor itself: __builtin_cpu_supports of zig says no to everything. */
  const unsigned fma = 1u << 12, xsave = 1u << 27, avx = 1u << 28, avx2 = 1u << 5;
  const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
  unsigned a, b, c, d, kept, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (fma | xsave | avx)) != (fma | xsave | avx)) return 0;
  __asm__ volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0)); /* registers that the system keeps: YMM, ZMM */
  if ((kept & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2)) return 0;
  return (b & avx512) == avx512 && (kept & 0xe6) == 0xe6 ? 256 + 512 : 256;
#elif defined(__aarch64__)
  return 128;
#else
  return 0;
#endif
}

/* Numbers that `rows.room` must hold for a member, by call. */
#if defined(__x86_64__) || defined(_M_X64)
#define ROOM(kind) return kind##_room_float_256(call, member)
#define RUN(kind)                                                                        \
  if (vector == 256) return (is_float64 ? kind##_double_256 : kind##_float_256)(call), 0; \
  if (vector == 512) return (is_float64 ? kind##_double_512 : kind##_float_512)(call), 0; \
  return 1
#elif defined(__aarch64__)
#define ROOM(kind) return kind##_room_float_128(call, member)
#define RUN(kind)                                                                        \
  if (vector == 128) return (is_float64 ? kind##_double_128 : kind##_float_128)(call), 0; \
  return 1
#else
#define ROOM(kind) return 0
#define RUN(kind) return 1
#endif

EXPORT int64_t population_forward_room(const Forward *call, int64_t member) { ROOM(rows); }
EXPORT int64_t population_td_room(const TemporalDifference *call, int64_t member) { ROOM(td); }
EXPORT int64_t population_pg_room(const PolicyGradient *call, int64_t member) { ROOM(pg); }
EXPORT int64_t population_ac_room(const ActorCritic *call, int64_t member) { ROOM(ac); }
EXPORT int64_t population_sac_room(const SoftActorCritic *call, int64_t member) { ROOM(sac); }
EXPORT int64_t population_team_room(const TeamActorCritic *call, int64_t member) { ROOM(team); }

/* Run a call with vectors of `vector` bits; 0, or 1 where there are none such. */
EXPORT int64_t population_forward(const Forward *call, int64_t vector, int64_t is_float64) { RUN(rows); }
EXPORT int64_t population_td(const TemporalDifference *call, int64_t vector, int64_t is_float64) { RUN(td); }
EXPORT int64_t population_pg(const PolicyGradient *call, int64_t vector, int64_t is_float64) { RUN(pg); }
EXPORT int64_t population_ac(const ActorCritic *call, int64_t vector, int64_t is_float64) { RUN(ac); }
EXPORT int64_t population_sac(const SoftActorCritic *call, int64_t vector, int64_t is_float64) { RUN(sac); }
EXPORT int64_t population_team(const TeamActorCritic *call, int64_t vector, int64_t is_float64) { RUN(team); }

#include "pool.h"
