/* Updates of soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905, algorithm 1), and of
 * its form for discrete actions, with expectations in place of samples (Christodoulou 2019, arXiv:1910.07207). */

/* Samples of tanh of a normal distribution: [A][columns] the actions, how far they are from the mean before tanh, 1 where
 * no limit holds the log standard deviation (else 0), and the slope of the log density there; log densities [columns]. */
typedef struct {
  REAL *action, *moved, *free, *slope, *log_prob;
} NAME(Squashed);

/* a = tanh(u), u = mean + std normal (arXiv:1812.05905, appendix C), given mean and log std as raw [2 A][columns].
 *
 * log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), where softplus(x) is x beyond 20 as in torch. */
static void NAME(squash)(int64_t actions, int64_t columns, const REAL *raw, const REAL *normal,
                         const NAME(Squashed) *at) {
  for (int64_t b = 0; b < columns; b++) at->log_prob[b] = 0;
  for (int64_t a = 0; a < actions; a++) {
    const REAL *means = raw + a * columns, *log_stds = raw + (actions + a) * columns, *drawn = normal + a * columns;
    REAL *restrict action = at->action + a * columns, *restrict moved = at->moved + a * columns;
    REAL *restrict free = at->free + a * columns, *restrict slope = at->slope + a * columns;
    REAL *restrict log_prob = at->log_prob;
    for (int64_t b = 0; b < columns; b++) {
      REAL x = log_stds[b], away, u, scaled, e, softplus, share;
      free[b] = x < LOG_STD_MIN || x > LOG_STD_MAX ? 0 : 1;
      x = x < LOG_STD_MIN ? LOG_STD_MIN : x;
      x = x > LOG_STD_MAX ? LOG_STD_MAX : x;
      away = NAME(exp)(x) * drawn[b], u = means[b] + away, scaled = (u - means[b]) * NAME(exp)(-x);
      e = NAME(exp)(-2 * u > 20 ? 20 : -2 * u);
      softplus = NAME(log1p)(e), share = e / (1 + e);
      softplus = -2 * u > 20 ? -2 * u : softplus, share = -2 * u > 20 ? 1 : share;
      log_prob[b] += FMA((REAL)-0.5 * scaled, scaled, -x) - (REAL)HALF_LOG_TWO_PI;
      log_prob[b] -= 2 * ((REAL)0.69314718055994530942 - u - softplus);
      action[b] = NAME(tanh)(u), moved[b] = away, slope[b] = FMA(-4, share, 2);
    }
  }
}

/* Gradient at the raw outputs, in place of that at the actions: grad [2 A][columns], whose second half is written too.
 * of_log_prob [columns]: gradient at the log density. */
static void NAME(squash_backward)(int64_t actions, int64_t columns, const REAL *of_log_prob, const NAME(Squashed) *at,
                                  REAL *grad) {
  for (int64_t a = 0; a < actions; a++)
    for (int64_t b = 0; b < columns; b++) {
      int64_t i = a * columns + b;
      REAL of_u = FMA(of_log_prob[b], at->slope[i], grad[i] * FMA(-at->action[i], at->action[i], 1));
      grad[i] = of_u, grad[actions * columns + i] = at->free[i] * FMA(of_u, at->moved[i], -of_log_prob[b]);
    }
}

/* Log probabilities [C][columns] of choices given their logits; legal [B][C], null if everything is. */
static void NAME(choose)(int64_t choices, int64_t batch, int64_t columns, const REAL *logits, const uint8_t *legal,
                         REAL *log_prob, REAL *spare) {
  memcpy(log_prob, logits, (size_t)(choices * columns) * sizeof(REAL));
  for (int64_t b = 0; legal && b < batch; b++)
    for (int64_t j = 0; j < choices; j++)
      if (!legal[b * choices + j]) log_prob[j * columns + b] = (REAL)ILLEGAL;
  NAME(log_softmax)(choices, columns, log_prob, spare, spare + columns);
}

static inline REAL NAME(smaller)(REAL a, REAL b) { return a < b || a != a ? a : b; }

/* V = min Q - alpha log p of sampled actions, or its expectation over choices (eq. 3; arXiv:1910.07207, eq. 10). */
static void NAME(soft_value)(int64_t choices, int64_t columns, REAL alpha, const REAL *one, const REAL *two,
                             const REAL *log_prob, REAL *restrict out) {
  for (int64_t b = 0; b < columns; b++) out[b] = 0;
  for (int64_t j = 0; j < (choices ? choices : 1); j++)
    for (int64_t b = 0; b < columns; b++) {
      int64_t i = j * columns + b;
      REAL v = FMA(-alpha, log_prob[i], NAME(smaller)(one[i], two[i]));
      out[b] = FMA(choices ? NAME(probability)(log_prob[i]) : 1, v, out[b]);
    }
}

static int64_t NAME(sac_widest)(const SoftActorCritic *call, int64_t n) {
  int64_t widest = NAME(widest)(call->actor + n), members = call->rows.members;
  for (int64_t k = 0; k < 2; k++) {
    if (call->encoder) widest = NAME(larger)(widest, NAME(widest)(call->encoder + k * members + n));
    widest = NAME(larger)(widest, NAME(widest)(call->head + k * members + n));
  }
  return widest;
}

static inline int64_t NAME(sac_room)(const SoftActorCritic *call, int64_t n) {
  int64_t columns = PADDED(call->batch), widest = NAME(sac_widest)(call, n), members = call->rows.members;
  int64_t gradient = NAME(gradient_size)(call->actor + n), size = NAME(kept_size)(call->actor + n, columns);
  for (int64_t k = 0; k < 2; k++) {
    const Member *encoder = call->encoder ? call->encoder + k * members + n : 0, *head = call->head + k * members + n;
    size += (encoder ? NAME(kept_size)(encoder, columns) : 0) + NAME(kept_size)(head, columns);
    size += head->layers[0].in * columns;
    gradient = NAME(larger)(gradient, NAME(larger)(encoder ? NAME(gradient_size)(encoder) : 0, NAME(gradient_size)(head)));
  }
  return size + 2 * call->inputs * columns + (6 * call->actions + call->choices) * columns + 2 * widest * columns +
         PADDED(widest) * columns + gradient + 7 * columns + 64;
}

/* What one update of a member works with. */
typedef struct {
  const SoftActorCritic *call;
  int64_t n, columns;
  const Member *actor;
  NAME(Kept) kept[MAX_DEPTH];
  NAME(Critic) critics[2];
  const REAL *value; /* of the actor */
  REAL *obs, *next_obs, *taken, *normal, *log_prob, *goals, *losses, *entropy, *spare;
  REAL *grad, *other, *turned, *gradient;
  NAME(Squashed) sampled;
} NAME(Work);

/* The two critics of `rows`: q[k] [columns], or [C][columns], of the observations (and of actions [A][columns]). */
static void NAME(twin_values)(NAME(Work) *at, const void *rows, int64_t k, const REAL *obs, const REAL *action,
                              const REAL **q) {
  const SoftActorCritic *call = at->call;
  const REAL *row = (const REAL *)rows + (k * call->rows.members + at->n) * call->critics.stride;
  const REAL *features = call->shared ? at->kept[call->shared - 1].outputs : obs;
  q[k] = NAME(critic_forward)(at->critics + k, row, obs, features, action, call->actions, at->columns, at->spare);
}

/* Run the actor on observations; its samples, or log probabilities of its choices. */
static void NAME(act)(NAME(Work) *at, const REAL *obs, const REAL *normal, const uint8_t *legal) {
  const SoftActorCritic *call = at->call;
  NAME(forward)(at->actor, at->value, obs, at->columns, at->kept, at->spare);
  const REAL *raw = at->kept[at->actor->depth - 1].outputs;
  if (call->choices) {
    NAME(choose)(call->choices, call->batch, at->columns, raw, legal, at->log_prob, at->spare);
    return;
  }
  NAME(load_rows)(normal, call->batch, call->actions, at->columns, at->normal);
  NAME(squash)(call->actions, at->columns, raw, at->normal, &at->sampled);
}

/* Move critic k by its squared error; its loss. */
static REAL NAME(fit_critic)(NAME(Work) *at, int64_t k, const REAL *weight, const int64_t *choice, REAL *error) {
  const SoftActorCritic *call = at->call;
  const Rows *rows = &call->critics;
  int64_t columns = at->columns, place = k * call->rows.members + at->n, start = place * rows->stride;
  REAL *row = (REAL *)rows->value + start, *first = (REAL *)rows->first + start, *second = (REAL *)rows->second + start;
  NAME(Critic) *critic = at->critics + k;
  const REAL *q[2];
  NAME(twin_values)(at, rows->value, k, at->obs, at->taken, q);
  memset(at->grad, 0, (size_t)((call->choices ? call->choices : 1) * columns) * sizeof(REAL));
  for (int64_t b = 0; b < call->batch; b++) {
    int64_t i = (choice ? choice[b] : 0) * columns + b;
    REAL off = q[k][i] - at->goals[b], weighted = off * weight[b], size = off < 0 ? -off : off;
    at->losses[b] = weighted * off, at->grad[i] = weighted + weighted;
    error[b] = k && !(size > error[b] || size != size) ? error[b] : size;
  }
  REAL loss = NAME(row_sum)(at->losses, columns);
  NAME(Rate) rate;
  NAME(next_step)(rows, place, &rate);
  REAL *at_features = NAME(backward)(critic->head, row, critic->read, columns, critic->values, at->grad, at->other,
                                     at->turned, at->gradient, at->spare,
                                     critic->encoder ? critic->head->layers[0].in : 0);
  NAME(descend)(critic->head, &rate, at->gradient, row, first, second);
  if (critic->encoder) {
    REAL *free = at_features == at->grad ? at->other : at->grad;
    NAME(backward)(critic->encoder, row, at->obs, columns, critic->features, at_features, free, at->turned, at->gradient,
                   at->spare, 0);
    NAME(descend)(critic->encoder, &rate, at->gradient, row, first, second);
  }
  return loss;
}

/* Gradient of -sum_b w_b V_b at the actor's outputs, into at->grad. Where both critics agree, each has half of it. */
static void NAME(of_samples)(NAME(Work) *at, const REAL *weight, REAL alpha, const REAL *const *q) {
  const SoftActorCritic *call = at->call;
  int64_t columns = at->columns, batch = call->batch, size = call->actions * columns;
  REAL *total = at->normal, *of_log_prob = at->losses;
  for (int64_t k = 0; k < 2; k++) {
    const REAL *mine = q[k], *others = q[1 - k];
    for (int64_t b = 0; b < batch; b++) {
      REAL share = mine[b] < others[b] ? 1 : mine[b] == others[b] ? (REAL)0.5 : 0;
      at->grad[b] = -weight[b] * share;
    }
    for (int64_t b = batch; b < columns; b++) at->grad[b] = 0;
    const REAL *row = (const REAL *)call->critics.value + (k * call->rows.members + at->n) * call->critics.stride;
    const NAME(Critic) *critic = at->critics + k;
    const REAL *of_action = NAME(backward)(critic->head, row, critic->read, columns, critic->values, at->grad, at->other,
                                           at->turned, 0, at->spare, call->actions);
    for (int64_t i = 0; i < size; i++) total[i] = k ? total[i] + of_action[i] : of_action[i];
  }
  memcpy(at->grad, total, (size_t)size * sizeof(REAL));
  for (int64_t b = 0; b < columns; b++) of_log_prob[b] = b < batch ? weight[b] * alpha : 0;
  NAME(squash_backward)(call->actions, columns, of_log_prob, &at->sampled, at->grad);
}

/* The same for choices: d V / d logit = p ((min Q - alpha log p) - V), 0 where illegal; values: V [columns]. */
static void NAME(of_choices)(NAME(Work) *at, const REAL *weight, REAL alpha, const REAL *const *q, const REAL *values,
                             const uint8_t *legal) {
  const SoftActorCritic *call = at->call;
  int64_t columns = at->columns, batch = call->batch, choices = call->choices;
  for (int64_t j = 0; j < choices; j++)
    for (int64_t b = 0; b < columns; b++) {
      int64_t i = j * columns + b;
      REAL v = FMA(-alpha, at->log_prob[i], NAME(smaller)(q[0][i], q[1][i])) - values[b];
      at->grad[i] = b < batch ? -weight[b] * (NAME(probability)(at->log_prob[i]) * v) : 0;
    }
  for (int64_t b = 0; legal && b < batch; b++)
    for (int64_t j = 0; j < choices; j++)
      if (!legal[b * choices + j]) at->grad[j * columns + b] = 0;
}

/* Entropy of each row: that of its choices, or -log p of its sample. */
static void NAME(entropies)(NAME(Work) *at) {
  int64_t columns = at->columns, choices = at->call->choices;
  for (int64_t b = 0; b < columns; b++) at->entropy[b] = choices ? 0 : -at->log_prob[b];
  for (int64_t j = 0; j < choices; j++)
    for (int64_t b = 0; b < columns; b++) {
      REAL x = at->log_prob[j * columns + b];
      at->entropy[b] = FMA(-NAME(probability)(x), x, at->entropy[b]);
    }
}

/* Gradient of the temperature's loss in its logarithm, alpha sum_b w_b (H_b - wanted) (arXiv:1812.05905, eq. 18). Where
 * masks leave n of C choices, `wanted` is scaled by log n / log C. */
static REAL NAME(of_temperature)(NAME(Work) *at, const REAL *weight, REAL alpha, const uint8_t *legal) {
  const SoftActorCritic *call = at->call;
  int64_t choices = call->choices;
  REAL wanted = (REAL)call->target_entropy[at->n], most = NAME(log1p)((REAL)(choices > 2 ? choices - 1 : 1));
  for (int64_t b = 0; b < call->batch; b++) {
    REAL of_row = wanted;
    if (legal) {
      int64_t count = 0;
      for (int64_t j = 0; j < choices; j++) count += legal[b * choices + j] != 0;
      of_row = wanted * NAME(log1p)((REAL)(count > 1 ? count - 1 : 0)) / most;
    }
    at->losses[b] = weight[b] * (alpha * (at->entropy[b] - of_row));
  }
  for (int64_t b = call->batch; b < at->columns; b++) at->losses[b] = 0;
  return NAME(row_sum)(at->losses, at->columns);
}

static void NAME(sac_lay_out)(const SoftActorCritic *call, int64_t n, NAME(Work) *at) {
  int64_t columns = PADDED(call->batch), widest = NAME(sac_widest)(call, n), members = call->rows.members;
  int64_t actions = call->actions;
  REAL *room = call->rows.room;
  at->call = call, at->n = n, at->columns = columns, at->actor = call->actor + n;
  at->value = (const REAL *)call->rows.value + n * call->rows.stride;
  NAME(lay_out)(at->actor, columns, room, at->kept), room += NAME(kept_size)(at->actor, columns);
  for (int64_t k = 0; k < 2; k++) {
    NAME(Critic) *critic = at->critics + k;
    critic->encoder = call->encoder ? call->encoder + k * members + n : 0, critic->head = call->head + k * members + n;
    if (critic->encoder) {
      NAME(lay_out)(critic->encoder, columns, room, critic->features);
      room += NAME(kept_size)(critic->encoder, columns);
    }
    NAME(lay_out)(critic->head, columns, room, critic->values), room += NAME(kept_size)(critic->head, columns);
    critic->read = room, room += critic->head->layers[0].in * columns;
  }
  REAL **of_inputs[2] = {&at->obs, &at->next_obs};
  for (int k = 0; k < 2; k++, room += call->inputs * columns) *of_inputs[k] = room;
  REAL **of_actions[6] = {&at->taken, &at->normal, &at->sampled.action, &at->sampled.moved, &at->sampled.free,
                          &at->sampled.slope};
  for (int k = 0; k < 6; k++, room += actions * columns) *of_actions[k] = room;
  REAL **of_rows[4] = {&at->goals, &at->losses, &at->entropy, &at->sampled.log_prob};
  for (int k = 0; k < 4; k++, room += columns) *of_rows[k] = room;
  at->log_prob = call->choices ? room : at->sampled.log_prob, room += call->choices * columns;
  at->spare = room, room += 2 * columns;
  at->grad = room, at->other = at->grad + widest * columns, at->turned = at->other + widest * columns;
  at->gradient = at->turned + PADDED(widest) * columns;
}

static void NAME(sac_member)(const SoftActorCritic *call, int64_t n) {
  const Rows *rows = &call->rows, *others = &call->critics, *scale = &call->temperature;
  int64_t members = rows->members, batch = call->batch, inputs = call->inputs, actions = call->actions;
  NAME(Work) work, *at = &work;
  NAME(sac_lay_out)(call, n, at);
  int64_t columns = at->columns, lone = n * scale->stride + call->log_alpha, choices = call->choices;
  REAL *value = (REAL *)rows->value + n * rows->stride, *log_alpha = (REAL *)scale->value + lone;
  for (int64_t b = 0; b < columns; b++) at->losses[b] = 0;
  for (int64_t u = 0; u < call->updates; u++) {
    int64_t number = u * members + n, from = number * batch;
    const REAL *weight = (const REAL *)call->weight + from, *reward = (const REAL *)call->reward + from;
    const REAL *discount = (const REAL *)call->discount + from, *q[2];
    const REAL *normal = choices ? 0 : (const REAL *)call->noise + from * actions;
    const REAL *next_normal = choices ? 0 : (const REAL *)call->next_noise + from * actions;
    const int64_t *choice = choices ? call->choice + from : 0;
    const uint8_t *next_legal = call->next_mask ? call->next_mask + from * choices : 0;
    const uint8_t *legal = call->obs_mask ? call->obs_mask + from * choices : 0;
    REAL *error = (REAL *)call->error + from, alpha = NAME(exp)(*log_alpha), loss = 0, *soft = at->goals;
    NAME(load_rows)((const REAL *)call->obs + from * inputs, batch, inputs, columns, at->obs);
    NAME(load_rows)((const REAL *)call->next_obs + from * inputs, batch, inputs, columns, at->next_obs);
    if (!choices) NAME(load_rows)((const REAL *)call->action + from * actions, batch, actions, columns, at->taken);
    NAME(act)(at, at->next_obs, next_normal, next_legal);
    for (int64_t k = 0; k < 2; k++) NAME(twin_values)(at, others->target, k, at->next_obs, at->sampled.action, q);
    NAME(soft_value)(choices, columns, alpha, q[0], q[1], at->log_prob, soft);
    for (int64_t b = 0; b < batch; b++) at->goals[b] = FMA(discount[b], soft[b], reward[b]);
    NAME(act)(at, at->obs, normal, legal);
    for (int64_t b = batch; b < columns; b++) at->losses[b] = 0;
    for (int64_t k = 0; k < 2; k++) loss += NAME(fit_critic)(at, k, weight, choice, error);
    ((REAL *)call->loss)[number] = loss;
    for (int64_t k = 0; k < 2; k++) NAME(twin_values)(at, others->value, k, at->obs, at->sampled.action, q);
    NAME(soft_value)(choices, columns, alpha, q[0], q[1], at->log_prob, soft);
    for (int64_t b = 0; b < batch; b++) at->losses[b] = weight[b] * soft[b];
    ((REAL *)call->actor_loss)[number] = -NAME(row_sum)(at->losses, columns);
    if (choices)
      NAME(of_choices)(at, weight, alpha, q, soft, legal);
    else
      NAME(of_samples)(at, weight, alpha, q);
    NAME(Rate) rate;
    NAME(next_step)(rows, n, &rate);
    NAME(backward)(at->actor, value, at->obs, columns, at->kept, at->grad, at->other, at->turned, at->gradient, at->spare,
                   0);
    NAME(descend)(at->actor, &rate, at->gradient, value, (REAL *)rows->first + n * rows->stride,
                  (REAL *)rows->second + n * rows->stride);
    if (call->learns_temperature) {
      NAME(entropies)(at);
      REAL slope = NAME(of_temperature)(at, weight, alpha, legal);
      NAME(next_step)(scale, n, &rate);
      NAME(adam)(&rate, 1, &slope, log_alpha, (REAL *)scale->first + lone, (REAL *)scale->second + lone);
    }
    for (int64_t k = 0; k < 2; k++) {
      int64_t place = k * members + n, start = place * others->stride;
      REAL tau = (REAL)call->tau[n], *fast = (REAL *)others->value + start, *slow = (REAL *)others->target + start;
      if (call->encoder) NAME(track)(call->encoder + place, tau, fast, slow);
      NAME(track)(call->head + place, tau, fast, slow);
    }
  }
}

static void NAME(sac)(const SoftActorCritic *call) {
  for (int64_t n = call->rows.begin; n < call->rows.end; n++)
    if (!call->live || call->live[n]) NAME(sac_member)(call, n);
}
