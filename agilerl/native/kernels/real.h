/* The kernels for one kind of REAL (float, or double with DOUBLE) and of vectors (VECTOR bits). */
#define JOIN_(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#undef REAL
#undef FMA
#undef SQRT
#undef RINT
#undef NAME
#undef NEGLIGIBLE
#ifdef DOUBLE
#define REAL double
#define NEGLIGIBLE (-700) /* exponents from which a power is taken as 0 */
#define FMA __builtin_fma
#define SQRT __builtin_sqrt
#define RINT __builtin_rint
#define NAME(x) JOIN(x, double, VECTOR)
#else
#define REAL float
#define NEGLIGIBLE (-87)
#define FMA __builtin_fmaf
#define SQRT __builtin_sqrtf
#define RINT __builtin_rintf
#define NAME(x) JOIN(x, float, VECTOR)
#endif

/* What a step of Adam needs of a member. */
typedef struct {
  REAL keep, decay, first_share, second_share, second_keep, step, root, eps;
} NAME(Rate);

#define ILLEGAL (-1e9) /* as in torch: exp gives exactly 0, and products stay finite */

#include "elementary.h"
#include "activations.h"
#include "dense.h"
#include "forward.h"
#include "temporal_difference.h"
#include "policy_gradient.h"
#include "actor_critic.h"
#include "soft_actor_critic.h"
#include "team_actor_critic.h"
