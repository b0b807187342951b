/* Activation functions and their derivatives. */

/* y = f(x) for n numbers; every case is a loop of its own, so that each becomes vector code. */
static void NAME(activate)(int kind, const REAL *restrict x, REAL *restrict y, int64_t n) {
  REAL density;
  switch (kind) {
  case RELU:
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
    break;
  case LEAKY_RELU:
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? x[i] * (REAL)0.01 : x[i];
    break;
  case ELU:
    for (int64_t i = 0; i < n; i++) {
      REAL e = NAME(expm1)(x[i]);
      y[i] = x[i] > 0 ? x[i] : e;
    }
    break;
  case TANH:
    for (int64_t i = 0; i < n; i++) y[i] = NAME(tanh)(x[i]);
    break;
  case SIGMOID:
    for (int64_t i = 0; i < n; i++) y[i] = NAME(sigmoid)(x[i]);
    break;
  case SILU:
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * NAME(sigmoid)(x[i]);
    break;
  case GELU:
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * NAME(normal)(x[i], &density);
    break;
  case MISH: /* tanh(log(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2), with e = e^x held where the share is 1 */
    for (int64_t i = 0; i < n; i++) {
      REAL e = NAME(exp)(x[i] > 20 ? 20 : x[i]), a = FMA(e, e, 2 * e);
      y[i] = x[i] * (a / (a + 2));
    }
    break;
  case SOFTPLUS:
    for (int64_t i = 0; i < n; i++) {
      REAL s = NAME(log1p)(NAME(exp)(x[i] > 20 ? 20 : x[i]));
      y[i] = x[i] > 20 ? x[i] : s;
    }
    break;
  case SOFTSIGN:
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1 + (x[i] < 0 ? -x[i] : x[i]));
    break;
  default:
    for (int64_t i = 0; i < n; i++) y[i] = x[i];
  }
}

/* grad *= f'(x), given inputs x and outputs y. */
static void NAME(activate_backward)(int kind, const REAL *restrict x, const REAL *restrict y, REAL *restrict grad,
                                    int64_t n) {
  switch (kind) {
  case RELU:
    for (int64_t i = 0; i < n; i++) grad[i] = x[i] <= 0 ? 0 : grad[i];
    break;
  case LEAKY_RELU:
    for (int64_t i = 0; i < n; i++) grad[i] = x[i] > 0 ? grad[i] : grad[i] * (REAL)0.01;
    break;
  case ELU:
    for (int64_t i = 0; i < n; i++) grad[i] = x[i] > 0 ? grad[i] : grad[i] * (y[i] + 1);
    break;
  case TANH:
    for (int64_t i = 0; i < n; i++) grad[i] *= FMA(-y[i], y[i], 1);
    break;
  case SIGMOID:
    for (int64_t i = 0; i < n; i++) grad[i] *= y[i] * (1 - y[i]);
    break;
  case SILU:
    for (int64_t i = 0; i < n; i++) {
      REAL s = NAME(sigmoid)(x[i]);
      grad[i] *= FMA(y[i], 1 - s, s);
    }
    break;
  case GELU:
    for (int64_t i = 0; i < n; i++) {
      REAL density, share = NAME(normal)(x[i], &density);
      grad[i] *= FMA(x[i], density, share);
    }
    break;
  case MISH: /* t + x s (1 - t^2) with t = tanh(softplus(x)) and s = sigmoid(x) */
    for (int64_t i = 0; i < n; i++) {
      REAL e = NAME(exp)(x[i] > 20 ? 20 : x[i]), a = FMA(e, e, 2 * e), t = a / (a + 2), s = NAME(sigmoid)(x[i]);
      grad[i] *= FMA(x[i] * s, 4 * (a + 1) / ((a + 2) * (a + 2)), t);
    }
    break;
  case SOFTPLUS:
    for (int64_t i = 0; i < n; i++) {
      REAL s = NAME(sigmoid)(x[i]);
      grad[i] *= x[i] > 20 ? 1 : s;
    }
    break;
  case SOFTSIGN:
    for (int64_t i = 0; i < n; i++) {
      REAL d = 1 + (x[i] < 0 ? -x[i] : x[i]);
      grad[i] /= d * d;
    }
    break;
  default:
    break;
  }
}

/* x [size][columns] becomes log softmax over the rows of each column, and total [columns] log sum exp; highest
 * [columns] is overwritten. Powers of exponents below NEGLIGIBLE count as 0. */
static void NAME(log_softmax)(int64_t size, int64_t columns, REAL *restrict x, REAL *restrict highest,
                              REAL *restrict total) {
  for (int64_t b = 0; b < columns; b++) highest[b] = x[b], total[b] = 0;
  for (int64_t j = 1; j < size; j++)
    for (int64_t b = 0; b < columns; b++)
      highest[b] = x[j * columns + b] > highest[b] ? x[j * columns + b] : highest[b];
  for (int64_t j = 0; j < size; j++)
    for (int64_t b = 0; b < columns; b++) {
      REAL below = x[j * columns + b] - highest[b], e = NAME(exp)(below);
      x[j * columns + b] = below, total[b] += below < (REAL)NEGLIGIBLE ? 0 : e;
    }
  for (int64_t b = 0; b < columns; b++) total[b] = NAME(log1p)(total[b] - 1);
  for (int64_t j = 0; j < size; j++)
    for (int64_t b = 0; b < columns; b++) x[j * columns + b] -= total[b];
  for (int64_t b = 0; b < columns; b++) total[b] += highest[b];
}

/* e^x of log probabilities. */
static inline REAL NAME(probability)(REAL x) {
  REAL p = NAME(exp)(x);
  return x < (REAL)NEGLIGIBLE ? 0 : p;
}
