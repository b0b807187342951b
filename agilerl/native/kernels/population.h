/* What Python and the kernels agree on. Every change of a field here raises POPULATION_ABI. */
#include <stdint.h>

#define POPULATION_ABI 1
#define MAX_DEPTH 12

/* As `agilerl.native.library.ACTIVATIONS` numbers them. */
enum { IDENTITY, RELU, LEAKY_RELU, ELU, TANH, SIGMOID, SILU, GELU, MISH, SOFTPLUS, SOFTSIGN };

/* One dense layer: real widths, and where its parameters lie in a member's row. */
typedef struct {
  int64_t in, out, activation, norm;
  int64_t weight, weight_row, bias, gain, shift;
} Layer;

typedef struct {
  int64_t depth;
  Layer layers[MAX_DEPTH];
} Member;

/* Temporal-difference updates of the members from `begin` to `end` (excluded).
 *
 * Shapes: U updates, N members, B rows, A actions, I inputs, D columns of a row. value, target, first and second are
 * [N][D] with `stride` numbers from row to row; obs and next_obs [U][N][B][I]; action [U][N][B]; reward, discount and
 * weight [U][N][B]; next_mask [U][N][B][A], null where everything is legal; loss [U][N]; error [U][N][B].
 */
typedef struct {
  int64_t begin, end, updates, members, batch, inputs, stride, is_double;
  const Member *member;
  void *value, *target, *first, *second;
  double *steps;
  const double *lr, *tau;
  double beta1, beta2, eps, decay;
  int64_t decouples_decay;
  const uint8_t *live;
  const void *obs, *next_obs, *reward, *discount, *weight;
  const int64_t *action;
  const uint8_t *next_mask;
  void *loss, *error;
  void *room;
} TemporalDifference;
