/* Minibatches of proximal policy optimisation: the clipped surrogate and the value loss (Schulman et al. 2017,
 * arXiv:1707.06347, eq. 7 and 9), for discrete actions of one or several components and for normal ones. */

#define MAX_LOG_RATIO 20
#define LOG_STD_MIN (-20)
#define LOG_STD_MAX 2
#define HALF_LOG_TWO_PI 0.91893853320467274178

static inline int64_t NAME(pg_room)(const PolicyGradient *call, int64_t n) {
  const Member *both[2] = {call->policy + n, call->critic + n};
  int64_t columns = PADDED(call->batch), size = (call->inputs + 16) * columns + 64;
  for (int k = 0; k < 2; k++) {
    int64_t widest = NAME(widest)(both[k]);
    size += NAME(kept_size)(both[k], columns) + 2 * widest * columns + PADDED(widest) * columns;
    size += NAME(gradient_size)(both[k]);
  }
  return size;
}

/* What the loss of the policy needs of each row of a minibatch, all [columns]. */
typedef struct {
  REAL *weight, *old_log_prob, *old_value, *advantage, *returns, *log_prob, *entropy, *of_log_prob, *spare, *losses;
} NAME(Columns);

/* Discrete actions: log probability and entropy, summed over the components. The logits [W][columns] are replaced by log
 * probabilities. */
static void NAME(choices_forward)(const PolicyGradient *call, const int64_t *samples, const int64_t *choice,
                                  const uint8_t *legal, int64_t width, int64_t columns, REAL *logits,
                                  const NAME(Columns) *at) {
  int64_t batch = call->batch;
  for (int64_t b = 0; legal && b < batch; b++)
    for (int64_t j = 0; j < width; j++)
      if (!legal[samples[b] * width + j]) logits[j * columns + b] = (REAL)ILLEGAL;
  for (int64_t b = 0; b < columns; b++) at->log_prob[b] = at->entropy[b] = 0;
  for (int64_t c = 0; c < call->components; c++) {
    int64_t size = call->sizes[c];
    NAME(log_softmax)(size, columns, logits, at->spare, at->losses);
    for (int64_t j = 0; j < size; j++)
      for (int64_t b = 0; b < columns; b++) {
        REAL x = logits[j * columns + b];
        at->entropy[b] = FMA(-NAME(probability)(x), x, at->entropy[b]);
      }
    for (int64_t b = 0; b < batch; b++)
      at->log_prob[b] += logits[choice[samples[b] * call->components + c] * columns + b];
    logits += size * columns;
  }
}

/* Gradient at the logits: d log p(a) / dx = 1[a] - p and dH / dx = -p (log p + H), component by component. */
static void NAME(choices_backward)(const PolicyGradient *call, const int64_t *samples, const int64_t *choice,
                                   const uint8_t *legal, int64_t width, int64_t columns, REAL entropy_share,
                                   const REAL *log_probs, REAL *grad, const NAME(Columns) *at) {
  int64_t batch = call->batch, start = 0;
  for (int64_t c = 0; c < call->components; c++) {
    int64_t size = call->sizes[c];
    const REAL *x = log_probs + start * columns;
    REAL *g = grad + start * columns, *entropy = at->spare;
    for (int64_t b = 0; b < columns; b++) entropy[b] = 0;
    for (int64_t j = 0; j < size; j++)
      for (int64_t b = 0; b < columns; b++) {
        REAL p = NAME(probability)(x[j * columns + b]);
        g[j * columns + b] = p, entropy[b] = FMA(-p, x[j * columns + b], entropy[b]);
      }
    for (int64_t j = 0; j < size; j++)
      for (int64_t b = 0; b < columns; b++) {
        REAL of_entropy = -(entropy_share * at->weight[b]);
        REAL slope = FMA(x[j * columns + b] + entropy[b], of_entropy, at->of_log_prob[b]);
        g[j * columns + b] *= -slope;
      }
    for (int64_t b = 0; b < batch; b++)
      g[choice[samples[b] * call->components + c] * columns + b] += at->of_log_prob[b];
    start += size;
  }
  for (int64_t b = 0; legal && b < batch; b++)
    for (int64_t j = 0; j < width; j++)
      if (!legal[samples[b] * width + j]) grad[j * columns + b] = 0;
}

/* Normal actions: outputs are means [C][columns] and log standard deviations [C][columns]; log probability and entropy
 * are sums over the components. Means are replaced by (a - mean) / std, and where a limit holds a log standard deviation,
 * it is replaced by that limit and `held` [C][columns] is 0, else 1. */
static void NAME(normal_forward)(const PolicyGradient *call, const int64_t *samples, const REAL *action, int64_t columns,
                                 REAL *outputs, REAL *held, const NAME(Columns) *at) {
  int64_t count = call->components;
  for (int64_t b = 0; b < columns; b++) at->log_prob[b] = at->entropy[b] = 0;
  for (int64_t c = 0; c < count; c++) {
    REAL low = (REAL)(call->least[c] > LOG_STD_MIN ? call->least[c] : LOG_STD_MIN);
    REAL *taken = at->spare, *mean = outputs + c * columns, *log_std = outputs + (count + c) * columns;
    for (int64_t b = 0; b < call->batch; b++) taken[b] = action[samples[b] * count + c];
    for (int64_t b = call->batch; b < columns; b++) taken[b] = 0;
    for (int64_t b = 0; b < columns; b++) {
      REAL x = log_std[b], free = x < low || x > LOG_STD_MAX ? 0 : 1;
      x = x < low ? low : x;
      x = x > LOG_STD_MAX ? LOG_STD_MAX : x;
      REAL scaled = (taken[b] - mean[b]) * NAME(exp)(-x);
      held[c * columns + b] = free, mean[b] = scaled, log_std[b] = x;
      at->log_prob[b] += FMA((REAL)-0.5 * scaled, scaled, -x) - (REAL)HALF_LOG_TWO_PI;
      at->entropy[b] += x + (REAL)(0.5 + HALF_LOG_TWO_PI);
    }
  }
}

static void NAME(normal_backward)(const PolicyGradient *call, int64_t columns, REAL entropy_share, const REAL *outputs,
                                  REAL *grad, const NAME(Columns) *at) {
  int64_t count = call->components;
  for (int64_t c = 0; c < count; c++) {
    const REAL *scaled = outputs + c * columns, *log_std = outputs + (count + c) * columns;
    REAL *of_mean = grad + c * columns, *of_log_std = grad + (count + c) * columns;
    for (int64_t b = 0; b < columns; b++) {
      REAL free = of_log_std[b], of_entropy = -(entropy_share * at->weight[b]);
      of_mean[b] = at->of_log_prob[b] * (scaled[b] * NAME(exp)(-log_std[b]));
      of_log_std[b] = free * FMA(at->of_log_prob[b], FMA(scaled[b], scaled[b], -1), of_entropy);
    }
  }
}

/* The clipped surrogate, with d loss / d log p of each row in of_log_prob; log ratios are held at MAX_LOG_RATIO. */
static REAL NAME(surrogate)(const NAME(Columns) *at, int64_t columns, REAL clip, REAL *divergence) {
  REAL low = 1 - clip, high = 1 + clip, *apart = at->spare;
  for (int64_t b = 0; b < columns; b++) {
    REAL moved = at->log_prob[b] - at->old_log_prob[b], bounded = moved > MAX_LOG_RATIO ? MAX_LOG_RATIO : moved;
    REAL ratio = NAME(exp)(bounded), free = ratio * at->advantage[b], held = ratio < low ? low : ratio;
    held = (held > high ? high : held) * at->advantage[b];
    at->losses[b] = -(at->weight[b] * (held < free ? held : free));
    at->of_log_prob[b] = free > held ? 0 : -(at->weight[b] * free);
    apart[b] = at->weight[b] * (NAME(expm1)(bounded) - moved);
  }
  *divergence = NAME(row_sum)(apart, columns);
  return NAME(row_sum)(at->losses, columns);
}

/* Half the weighted squared error of the values, and its gradient; with `clips`, the larger one of it and of that of the
 * values within `clip` of the old ones (openai/baselines, ppo2/model.py). */
static REAL NAME(value_loss)(const NAME(Columns) *at, int64_t columns, REAL clip, int64_t clips, REAL share,
                             const REAL *value, REAL *grad) {
  for (int64_t b = 0; b < columns; b++) {
    REAL error = value[b] - at->returns[b], squared = error * error, gradient = at->weight[b] * error;
    if (clips) {
      REAL moved = value[b] - at->old_value[b], held = moved < -clip ? -clip : moved;
      held = held > clip ? clip : held;
      REAL other = at->old_value[b] + held - at->returns[b], larger = other * other;
      gradient = larger > squared && held != moved ? 0 : gradient;
      squared = larger > squared ? larger : squared;
    }
    at->losses[b] = at->weight[b] * squared, grad[b] = share * gradient;
  }
  return (REAL)0.5 * NAME(row_sum)(at->losses, columns);
}

static void NAME(pg_member)(const PolicyGradient *call, int64_t n) {
  const Rows *rows = &call->rows;
  const Member *policy = call->policy + n, *critic = call->critic + n, *both[2] = {policy, critic};
  int64_t batch = call->batch, columns = PADDED(batch), inputs = call->inputs, samples = call->samples, size[2];
  int64_t width = policy->layers[policy->depth - 1].out, components = call->components;
  REAL *value = (REAL *)rows->value + n * rows->stride, *first = (REAL *)rows->first + n * rows->stride;
  REAL *second = (REAL *)rows->second + n * rows->stride, *obs = rows->room, *room = obs + inputs * columns;
  NAME(Kept) kept[2][MAX_DEPTH];
  REAL *grad[2], *other[2], *turned[2], *gradient[2];
  for (int k = 0; k < 2; k++) {
    int64_t widest = NAME(widest)(both[k]);
    NAME(lay_out)(both[k], columns, room, kept[k]), room += NAME(kept_size)(both[k], columns);
    grad[k] = room, other[k] = grad[k] + widest * columns, turned[k] = other[k] + widest * columns;
    gradient[k] = turned[k] + PADDED(widest) * columns, size[k] = NAME(gradient_size)(both[k]);
    room = gradient[k] + size[k];
  }
  NAME(Columns) at;
  REAL **parts[10] = {&at.weight, &at.old_log_prob, &at.old_value, &at.advantage, &at.returns, &at.log_prob, &at.entropy,
                      &at.of_log_prob, &at.spare, &at.losses};
  for (int k = 0; k < 10; k++, room += columns) *parts[k] = room;
  REAL *spare = room; /* two columns, of LayerNorm */
  const REAL *all_obs = (const REAL *)call->obs + n * samples * inputs;
  const REAL *numbers = (const REAL *)call->numbers + n * samples * 4;
  const REAL *action = call->sizes ? 0 : (const REAL *)call->action + n * samples * components;
  const int64_t *choice = call->sizes ? call->choice + n * samples * components : 0;
  const uint8_t *legal = call->legal ? call->legal + n * samples * width : 0;
  REAL clip = (REAL)call->clip[n], entropy_share = (REAL)call->entropy_share[n];
  REAL value_share = (REAL)call->value_share[n], max_norm = (REAL)call->max_norm[n];
  for (int64_t u = 0; u < call->updates; u++) {
    int64_t number = u * rows->members + n;
    if (!call->live[number]) continue;
    const int64_t *sample = call->sample + number * batch;
    const REAL *weight = (const REAL *)call->weight + number * batch;
    for (int64_t b = 0; b < columns; b++) {
      int is_row = b < batch;
      const REAL *of_row = numbers + (is_row ? sample[b] : 0) * 4;
      at.weight[b] = is_row ? weight[b] : 0, at.old_log_prob[b] = of_row[0], at.old_value[b] = of_row[1];
      at.advantage[b] = of_row[2], at.returns[b] = of_row[3];
      const REAL *from = all_obs + (is_row ? sample[b] : 0) * inputs;
      for (int64_t i = 0; i < inputs; i++) obs[i * columns + b] = is_row ? from[i] : 0;
    }
    NAME(forward)(policy, value, obs, columns, kept[0], spare);
    NAME(forward)(critic, value, obs, columns, kept[1], spare);
    REAL divergence, *outputs = other[0], *of_outputs = grad[0]; /* the outputs as they are: for their activation */
    memcpy(outputs, kept[0][policy->depth - 1].outputs, (size_t)(width * columns) * sizeof(REAL));
    if (call->sizes)
      NAME(choices_forward)(call, sample, choice, legal, width, columns, outputs, &at);
    else
      NAME(normal_forward)(call, sample, action, columns, outputs, of_outputs + components * columns, &at);
    for (int64_t b = batch; b < columns; b++) at.log_prob[b] = at.old_log_prob[b], at.entropy[b] = 0;
    REAL policy_loss = NAME(surrogate)(&at, columns, clip, &divergence);
    for (int64_t b = 0; b < columns; b++) at.losses[b] = at.weight[b] * at.entropy[b];
    REAL entropy = NAME(row_sum)(at.losses, columns);
    if (call->sizes)
      NAME(choices_backward)(call, sample, choice, legal, width, columns, entropy_share, outputs, of_outputs, &at);
    else
      NAME(normal_backward)(call, columns, entropy_share, outputs, of_outputs, &at);
    const REAL *values = kept[1][critic->depth - 1].outputs;
    REAL loss = NAME(value_loss)(&at, columns, clip, call->clips_value, value_share, values, grad[1]);
    NAME(Rate) rate;
    NAME(next_step)(rows, n, &rate);
    for (int k = 0; k < 2; k++) {
      NAME(backward)(both[k], value, obs, columns, kept[k], grad[k], other[k], turned[k], gradient[k], spare,
                     0);
      NAME(clip)(size[k], max_norm, gradient[k]);
    }
    for (int k = 0; k < 2; k++) NAME(descend)(both[k], &rate, gradient[k], value, first, second);
    ((REAL *)call->policy_loss)[number] = policy_loss, ((REAL *)call->divergence)[number] = divergence;
    ((REAL *)call->loss)[number] = FMA(-entropy_share, entropy, FMA(value_share, loss, policy_loss));
  }
}

static void NAME(pg)(const PolicyGradient *call) {
  for (int64_t n = call->rows.begin; n < call->rows.end; n++) NAME(pg_member)(call, n);
}
