/* A whole update of Q-learning: targets (Mnih et al. 2015; van Hasselt et al. 2016, arXiv:1509.06461, eq. 4), the
 * squared error of the actions that were taken, Adam, and the soft move of the target network. */

static inline int64_t NAME(td_room)(const TemporalDifference *call, int64_t n) {
  const Member *member = call->member + n;
  int64_t columns = PADDED(call->batch), widest = NAME(widest)(member), gradient = NAME(gradient_size)(member);
  if (gradient < columns) gradient = columns;
  return 2 * member->layers[0].in * columns + 2 * NAME(kept_size)(member, columns) + 2 * widest * columns +
         PADDED(widest) * columns + gradient + 2 * columns + 64;
}

/* The conservative term, share sum_b w_b (log sum_a exp Q(s_b, a) - Q(s_b, a_b)) (Kumar et al. 2020, arXiv:2006.04779,
 * eq. 4): its gradient, and its part of the loss of each row. room: two columns. */
static void NAME(conservative)(const Member *member, int64_t batch, int64_t columns, const REAL *values,
                               const int64_t *action, const uint8_t *legal, const REAL *weight, REAL share, REAL *grad,
                               REAL *room, REAL *losses) {
  int64_t actions = member->layers[member->depth - 1].out;
  REAL *total = room, *highest = room + columns;
  memcpy(grad, values, (size_t)(actions * columns) * sizeof(REAL));
  for (int64_t b = 0; legal && b < batch; b++)
    for (int64_t a = 0; a < actions; a++)
      if (!legal[b * actions + a]) grad[a * columns + b] = (REAL)ILLEGAL;
  NAME(log_softmax)(actions, columns, grad, highest, total);
  for (int64_t a = 0; a < actions; a++) {
    for (int64_t b = 0; b < batch; b++) grad[a * columns + b] = share * weight[b] * NAME(probability)(grad[a * columns + b]);
    for (int64_t b = batch; b < columns; b++) grad[a * columns + b] = 0;
  }
  for (int64_t b = 0; b < batch; b++) {
    losses[b] = share * weight[b] * (total[b] - values[action[b] * columns + b]);
    grad[action[b] * columns + b] -= share * weight[b];
  }
}

static void NAME(td_member)(const TemporalDifference *call, int64_t n) {
  const Rows *rows = &call->rows;
  const Member *member = call->member + n;
  int64_t columns = PADDED(call->batch), batch = call->batch, inputs = call->inputs, widest = NAME(widest)(member);
  int64_t actions = member->layers[member->depth - 1].out, size = inputs * columns;
  REAL *value = (REAL *)rows->value + n * rows->stride, *target = (REAL *)rows->target + n * rows->stride;
  REAL *first = (REAL *)rows->first + n * rows->stride, *second = (REAL *)rows->second + n * rows->stride;
  REAL *obs = rows->room, *next_obs = obs + size, *room = next_obs + size;
  NAME(Kept) kept[MAX_DEPTH], other_kept[MAX_DEPTH];
  NAME(lay_out)(member, columns, room, kept), room += NAME(kept_size)(member, columns);
  NAME(lay_out)(member, columns, room, other_kept), room += NAME(kept_size)(member, columns);
  REAL *grad = room, *other = grad + widest * columns, *turned = other + widest * columns;
  REAL *spare = turned + PADDED(widest) * columns, *gradient = spare + 2 * columns;
  for (int64_t u = 0; u < call->updates; u++) {
    int64_t at = (u * rows->members + n) * batch;
    const REAL *reward = (const REAL *)call->reward + at, *discount = (const REAL *)call->discount + at;
    const REAL *weight = (const REAL *)call->weight + at;
    const int64_t *action = call->action + at;
    const uint8_t *mask = call->next_mask ? call->next_mask + at * actions : 0;
    REAL *error = (REAL *)call->error + at, *goals = gradient;
    NAME(load_rows)((const REAL *)call->obs + at * inputs, batch, inputs, columns, obs);
    NAME(load_rows)((const REAL *)call->next_obs + at * inputs, batch, inputs, columns, next_obs);
    NAME(forward)(member, target, next_obs, columns, other_kept, spare);
    if (call->is_double) NAME(forward)(member, value, next_obs, columns, kept, spare);
    const REAL *next = other_kept[member->depth - 1].outputs;
    const REAL *choose = call->is_double ? kept[member->depth - 1].outputs : next;
    for (int64_t b = 0; b < batch; b++) {
      int64_t best = -1;
      for (int64_t a = 0; a < actions; a++) {
        if (mask && !mask[b * actions + a]) continue;
        REAL held = best < 0 ? 0 : choose[best * columns + b];
        if (best < 0 || choose[a * columns + b] > held || choose[a * columns + b] != choose[a * columns + b]) best = a;
        if (choose[best * columns + b] != choose[best * columns + b]) break; /* NaN wins, as in torch */
      }
      REAL after = best < 0 ? -(REAL)INFINITY : next[best * columns + b];
      goals[b] = FMA(discount[b], after, reward[b]);
    }
    NAME(forward)(member, value, obs, columns, kept, spare);
    const REAL *values = kept[member->depth - 1].outputs;
    REAL *losses = spare;
    for (int64_t b = 0; b < columns; b++) losses[b] = 0;
    if (call->conservative) {
      const uint8_t *legal = call->obs_mask ? call->obs_mask + at * actions : 0;
      NAME(conservative)(member, batch, columns, values, action, legal, weight, (REAL)call->conservative[n], grad,
                         turned, losses);
    } else {
      for (int64_t i = 0; i < actions * columns; i++) grad[i] = 0;
    }
    const REAL share = call->conservative ? (REAL)0.5 : 1;
    for (int64_t b = 0; b < batch; b++) {
      REAL difference = values[action[b] * columns + b] - goals[b];
      REAL weighted = share * (difference * weight[b]);
      losses[b] = FMA(weighted, difference, losses[b]), grad[action[b] * columns + b] += weighted + weighted;
      error[b] = difference < 0 ? -difference : difference;
    }
    ((REAL *)call->loss)[u * rows->members + n] = NAME(row_sum)(losses, columns);
    NAME(Rate) rate;
    NAME(next_step)(rows, n, &rate);
    NAME(backward)(member, value, obs, columns, kept, grad, other, turned, gradient, spare, 0);
    NAME(descend)(member, &rate, gradient, value, first, second);
    NAME(track)(member, (REAL)call->tau[n], value, target);
  }
}

static void NAME(td)(const TemporalDifference *call) {
  for (int64_t n = call->rows.begin; n < call->rows.end; n++)
    if (!call->live || call->live[n]) NAME(td_member)(call, n);
}
