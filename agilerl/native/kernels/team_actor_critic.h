/* Updates of teams with deterministic policies and critics of all observations and actions: MADDPG (Lowe et al. 2017,
 * arXiv:1706.02275, algorithm 1) with one critic a group, MATD3 (Ackermann et al. 2019, arXiv:1910.01465) with two.
 *
 * The K agents of a group are K blocks of `columns` side by side; their critic encodes what all observe once. */

#define LOGIT_DECAY 1e-3 /* weight of squared logits, as in the authors' released code (openai/maddpg) */

/* What the updates of one group work with; wide = K columns, features and actions as [.][columns] or [.][wide]. */
typedef struct {
  const TeamActorCritic *call;
  const TeamGroup *group;
  int64_t n, columns, wide;
  REAL *joint, *next_joint, *taken, *following; /* of the team: in the same place for every group */
  REAL *seen, *read, *summed, *goals, *losses, *weight, *spare, *grad, *other, *turned, *gradient, *relaxed, *critic_room;
  NAME(Kept) policy[MAX_DEPTH], encoder[MAX_DEPTH], head[MAX_DEPTH];
} NAME(TeamWork);

/* Lay out room for a group; the numbers it takes. Without `room` only these are wanted. */
static int64_t NAME(team_lay_out)(const TeamActorCritic *call, const TeamGroup *group, int64_t n, REAL *room,
                                  NAME(TeamWork) *at) {
  int64_t columns = PADDED(call->batch), wide = group->count * columns, used = 0, kept = 0, read = 0, features = 0;
  const Member *policy = group->policy + n;
  int64_t widest = NAME(widest)(policy), gradient = NAME(gradient_size)(policy);
  for (int64_t k = 0; k < call->twins; k++) {
    const Member *encoder = group->encoder[k] + n, *head = group->head[k] + n;
    widest = NAME(larger)(widest, NAME(larger)(NAME(widest)(encoder), NAME(widest)(head)));
    gradient = NAME(larger)(gradient, NAME(larger)(NAME(gradient_size)(encoder), NAME(gradient_size)(head)));
    kept = NAME(larger)(kept, NAME(kept_size)(encoder, columns) + NAME(kept_size)(head, wide));
    read = NAME(larger)(read, head->layers[0].in), features = NAME(larger)(features, encoder->layers[encoder->depth - 1].out);
  }
  struct { REAL **place; int64_t size; } parts[] = {
      {&at->joint, call->inputs * columns}, {&at->next_joint, call->inputs * columns},
      {&at->taken, call->features * columns}, {&at->following, call->features * columns},
      {&at->seen, policy->layers[0].in * wide}, {&at->read, read * wide}, {&at->summed, features * columns},
      {&at->goals, wide}, {&at->losses, wide}, {&at->weight, wide}, {&at->spare, 2 * wide}, {&at->grad, widest * wide},
      {&at->other, widest * wide}, {&at->turned, PADDED(widest) * wide}, {&at->gradient, gradient},
      {&at->relaxed, policy->layers[policy->depth - 1].out * wide}, {&at->critic_room, kept}};
  for (size_t k = 0; k < sizeof parts / sizeof *parts; used += parts[k].size, k++)
    if (room) *parts[k].place = room + used;
  if (room) {
    at->call = call, at->group = group, at->n = n, at->columns = columns, at->wide = wide;
    NAME(lay_out)(policy, wide, room + used, at->policy);
  }
  return used + NAME(kept_size)(policy, wide);
}

static inline int64_t NAME(team_room)(const TeamActorCritic *call, int64_t n) {
  int64_t most = 0;
  NAME(TeamWork) unused;
  for (int64_t g = 0; g < call->groups; g++)
    most = NAME(larger)(most, NAME(team_lay_out)(call, call->group + g, n, 0, &unused));
  return most + 64;
}

/* Numbers [B][M] of an agent as one block of `columns`; zero beyond the batch. */
static void NAME(of_agent)(const NAME(TeamWork) *at, const void *numbers, int64_t update, int64_t agent, REAL *out) {
  const TeamActorCritic *call = at->call;
  const REAL *rows = (const REAL *)numbers + (update * call->members + at->n) * call->batch * call->agents;
  for (int64_t b = 0; b < at->columns; b++) out[b] = b < call->batch ? rows[b * call->agents + agent] : 0;
}

/* Run the policy of `row` on what the agents of its group see. */
static const REAL *NAME(team_outputs)(NAME(TeamWork) *at, const void *row, int64_t update, int is_next) {
  const TeamActorCritic *call = at->call;
  const Member *policy = at->group->policy + at->n;
  int64_t inputs = policy->layers[0].in, from = (update * call->members + at->n) * call->batch * inputs;
  for (int64_t k = 0; k < at->group->count; k++) {
    const TeamAgent *agent = call->agent + at->group->agents[k];
    const REAL *rows = (const REAL *)(is_next ? agent->next_obs : agent->obs) + from;
    for (int64_t i = 0; i < inputs; i++) {
      REAL *out = at->seen + i * at->wide + k * at->columns;
      for (int64_t b = 0; b < at->columns; b++) out[b] = b < call->batch ? rows[b * inputs + i] : 0;
    }
  }
  NAME(forward)(policy, (const REAL *)row + at->n * at->group->actor.stride, at->seen, at->wide, at->policy, at->spare);
  return at->policy[policy->depth - 1].outputs;
}

/* The place of the highest score; NaN counts as the highest, as in torch. scores: [size] numbers `step` apart. */
static int64_t NAME(best)(const REAL *scores, int64_t step, int64_t size) {
  int64_t best = 0;
  for (int64_t j = 1; j < size && scores[best * step] == scores[best * step]; j++)
    if (scores[j * step] > scores[best * step] || scores[j * step] != scores[j * step]) best = j;
  return best;
}

/* Actions of target policies at the next observations, into `following`; 0 for agents that are absent then. */
static void NAME(team_following)(NAME(TeamWork) *at, int64_t update) {
  const TeamActorCritic *call = at->call;
  int64_t batch = call->batch, columns = at->columns, wide = at->wide;
  int64_t from = (update * call->members + at->n) * batch;
  REAL *outputs = at->other, *there = at->losses;
  const REAL *raw = NAME(team_outputs)(at, at->group->actor.target, update, 1);
  REAL std = call->smoothing ? (REAL)call->noise[at->n] : 0, limit = call->smoothing ? (REAL)call->limit[at->n] : 0;
  for (int64_t k = 0; k < at->group->count; k++) {
    int64_t number = at->group->agents[k];
    const TeamAgent *agent = call->agent + number;
    NAME(of_agent)(at, call->next_present, update, number, there);
    for (int64_t j = 0; j < agent->width; j++) {
      REAL *out = at->following + (agent->start + j) * columns;
      for (int64_t b = 0; b < columns; b++) out[b] = outputs[j * columns + b] = raw[j * wide + k * columns + b];
    }
    if (!agent->components) {
      for (int64_t j = 0; j < agent->width; j++) {
        REAL *out = at->following + (agent->start + j) * columns;
        for (int64_t b = 0; b < batch && call->smoothing; b++) {
          REAL moved = ((const REAL *)call->smoothing)[(from + b) * call->features + agent->start + j] * std;
          moved = moved > limit ? limit : moved;
          moved = out[b] + (moved < -limit ? -limit : moved);
          moved = moved < -1 ? -1 : moved;
          out[b] = moved > 1 ? 1 : moved;
        }
        for (int64_t b = 0; b < columns; b++) out[b] *= there[b];
      }
      continue;
    }
    for (int64_t b = 0; b < batch && call->next_mask; b++)
      for (int64_t j = 0; j < agent->width; j++)
        if (!call->next_mask[(from + b) * call->choices + agent->legal + j]) outputs[j * columns + b] = (REAL)ILLEGAL;
    for (int64_t c = 0, start = 0; c < agent->components; start += agent->sizes[c], c++)
      for (int64_t b = 0; b < columns; b++) {
        int64_t best = NAME(best)(outputs + start * columns + b, columns, agent->sizes[c]);
        for (int64_t j = 0; j < agent->sizes[c]; j++)
          at->following[(agent->start + start + j) * columns + b] = j == best ? there[b] : 0;
      }
  }
}

/* Actions from replay as features: one-hot choices or components; 0 for agents that were absent. */
static void NAME(team_taken)(NAME(TeamWork) *at, int64_t update) {
  const TeamActorCritic *call = at->call;
  int64_t columns = at->columns;
  const REAL *rows = (const REAL *)call->action + (update * call->members + at->n) * call->batch * call->stored;
  REAL *there = at->losses;
  memset(at->taken, 0, (size_t)(call->features * columns) * sizeof(REAL));
  for (int64_t a = 0; a < call->agents; a++) {
    const TeamAgent *agent = call->agent + a;
    NAME(of_agent)(at, call->present, update, a, there);
    for (int64_t c = 0, start = agent->start; c < (agent->components ? agent->components : agent->width); c++) {
      for (int64_t b = 0; b < call->batch; b++) {
        REAL number = rows[b * call->stored + agent->column + c];
        if (agent->components)
          at->taken[(start + (int64_t)number) * columns + b] = there[b];
        else
          at->taken[start * columns + b] = number * there[b];
      }
      start += agent->components ? agent->sizes[c] : 1;
    }
  }
}

/* What the head of critic k reads: features, actions and, of several agents, which of them it is about. */
static void NAME(team_read)(NAME(TeamWork) *at, int64_t k, const void *rows, const REAL *joint, const REAL *actions) {
  const TeamGroup *group = at->group;
  const Member *encoder = group->encoder[k] + at->n, *head = group->head[k] + at->n;
  const REAL *row = (const REAL *)rows + at->n * group->critic[k].stride;
  int64_t columns = at->columns, wide = at->wide, count = at->call->features;
  int64_t features = encoder->layers[encoder->depth - 1].out;
  size_t block = (size_t)columns * sizeof(REAL);
  NAME(lay_out)(encoder, columns, at->critic_room, at->encoder);
  NAME(lay_out)(head, wide, at->critic_room + NAME(kept_size)(encoder, columns), at->head);
  NAME(forward)(encoder, row, joint, columns, at->encoder, at->spare);
  const REAL *encoded = at->encoder[encoder->depth - 1].outputs;
  for (int64_t g = 0; g < group->count; g++) {
    REAL *out = at->read + g * columns;
    for (int64_t i = 0; i < features; i++) memcpy(out + i * wide, encoded + i * columns, block);
    for (int64_t i = 0; i < count; i++) memcpy(out + (features + i) * wide, actions + i * columns, block);
    for (int64_t i = 0; group->count > 1 && i < group->count; i++)
      for (int64_t b = 0; b < columns; b++) out[(features + count + i) * wide + b] = i == g;
  }
}

/* Values [wide] of critic k for what its head reads. */
static const REAL *NAME(team_values)(NAME(TeamWork) *at, int64_t k, const void *rows) {
  const Member *head = at->group->head[k] + at->n;
  const REAL *row = (const REAL *)rows + at->n * at->group->critic[k].stride;
  NAME(forward)(head, row, at->read, at->wide, at->head, at->spare);
  return at->head[head->depth - 1].outputs;
}

/* Move critic k of the group by its squared error; its loss. */
static REAL NAME(team_fit)(NAME(TeamWork) *at, int64_t update, int64_t k) {
  const TeamActorCritic *call = at->call;
  const TeamGroup *group = at->group;
  const Rows *rows = group->critic + k;
  const Member *encoder = group->encoder[k] + at->n, *head = group->head[k] + at->n;
  int64_t columns = at->columns, wide = at->wide, start = at->n * rows->stride;
  int64_t size = encoder->layers[encoder->depth - 1].out;
  REAL *row = (REAL *)rows->value + start, *first = (REAL *)rows->first + start, *second = (REAL *)rows->second + start;
  REAL *errors = (REAL *)call->error + (update * call->members + at->n) * call->batch * call->agents;
  NAME(team_read)(at, k, rows->value, at->joint, at->taken);
  const REAL *q = NAME(team_values)(at, k, rows->value);
  for (int64_t g = 0; g < group->count; g++)
    for (int64_t b = 0; b < columns; b++) {
      int64_t i = g * columns + b;
      int is_row = b < call->batch;
      REAL off = is_row ? q[i] - at->goals[i] : 0, weighted = off * at->weight[i], far = off < 0 ? -off : off;
      at->losses[i] = weighted * off, at->grad[i] = weighted + weighted;
      if (!is_row) continue;
      REAL *error = errors + b * call->agents + group->agents[g];
      *error = k && !(far > *error || far != far) ? *error : far;
    }
  REAL loss = NAME(row_sum)(at->losses, wide);
  NAME(Rate) rate;
  NAME(next_step)(rows, at->n, &rate);
  REAL *at_read = NAME(backward)(head, row, at->read, wide, at->head, at->grad, at->other, at->turned, at->gradient,
                                 at->spare, head->layers[0].in);
  NAME(descend)(head, &rate, at->gradient, row, first, second);
  for (int64_t i = 0; i < size; i++)
    for (int64_t b = 0; b < columns; b++) {
      REAL total = at_read[i * wide + b];
      for (int64_t g = 1; g < group->count; g++) total += at_read[i * wide + g * columns + b];
      at->summed[i * columns + b] = total;
    }
  memcpy(at->grad, at->summed, (size_t)(size * columns) * sizeof(REAL));
  NAME(backward)(encoder, row, at->joint, columns, at->encoder, at->grad, at->other, at->turned, at->gradient, at->spare,
                 0);
  NAME(descend)(encoder, &rate, at->gradient, row, first, second);
  return loss;
}

/* Relaxed choices softmax((logits + noise) / temperature) of one agent [width][columns], and their one-hot maxima: in
 * place of the logits, and in `chosen`, with rows `wide` apart. */
static void NAME(relax)(NAME(TeamWork) *at, const TeamAgent *agent, int64_t from, REAL *logits, REAL *chosen) {
  const TeamActorCritic *call = at->call;
  int64_t columns = at->columns, wide = at->wide, batch = call->batch;
  REAL share = (REAL)(1 / call->temperature);
  for (int64_t b = 0; b < batch; b++)
    for (int64_t j = 0; j < agent->width; j++) {
      REAL *score = logits + j * columns + b;
      *score += ((const REAL *)call->gumbel)[(from + b) * call->features + agent->start + j];
      if (call->obs_mask && !call->obs_mask[(from + b) * call->choices + agent->legal + j]) *score = (REAL)ILLEGAL;
      *score *= share;
    }
  for (int64_t c = 0, start = 0; c < agent->components; start += agent->sizes[c], c++) {
    REAL *part = logits + start * columns;
    NAME(log_softmax)(agent->sizes[c], columns, part, at->spare, at->spare + columns);
    for (int64_t b = 0; b < columns; b++) {
      int64_t best = NAME(best)(part + b, columns, agent->sizes[c]);
      for (int64_t j = 0; j < agent->sizes[c]; j++) chosen[(start + j) * wide + b] = j == best;
    }
    for (int64_t i = 0; i < agent->sizes[c] * columns; i++) part[i] = NAME(probability)(part[i]);
  }
}

/* Move the policy of the group by its critic's gradient (arXiv:1706.02275, eq. 5); its loss. Each agent's action is that
 * of its policy, those of others come from replay. */
static REAL NAME(team_improve)(NAME(TeamWork) *at, int64_t update) {
  const TeamActorCritic *call = at->call;
  const TeamGroup *group = at->group;
  const Member *policy = group->policy + at->n, *head = group->head[0] + at->n;
  int64_t columns = at->columns, wide = at->wide, batch = call->batch;
  int64_t width = policy->layers[policy->depth - 1].out, from = (update * call->members + at->n) * batch;
  int64_t ids = group->count > 1 ? group->count : 0, features = head->layers[0].in - call->features - ids;
  int is_choice = call->agent[group->agents[0]].components != 0;
  const REAL *outputs = NAME(team_outputs)(at, group->actor.value, update, 0);
  REAL *value = (REAL *)group->actor.value + at->n * group->actor.stride, *relaxed = at->relaxed;
  NAME(team_read)(at, 0, group->critic[0].value, at->joint, at->taken);
  for (int64_t g = 0; g < group->count; g++) {
    const TeamAgent *agent = call->agent + group->agents[g];
    REAL *own = at->read + (features + agent->start) * wide + g * columns, *scores = relaxed + g * width * columns;
    for (int64_t j = 0; j < width; j++)
      for (int64_t b = 0; b < columns; b++) own[j * wide + b] = scores[j * columns + b] = outputs[j * wide + g * columns + b];
    if (is_choice) NAME(relax)(at, agent, from, scores, own);
  }
  const REAL *q = NAME(team_values)(at, 0, group->critic[0].value);
  for (int64_t i = 0; i < wide; i++) {
    REAL squares = 0;
    for (int64_t j = 0; is_choice && j < width; j++) squares = FMA(outputs[j * wide + i], outputs[j * wide + i], squares);
    int is_row = i % columns < batch;
    at->losses[i] = is_row ? at->weight[i] * FMA((REAL)-LOGIT_DECAY / (REAL)width, squares, q[i]) : 0;
    at->grad[i] = -at->weight[i];
  }
  REAL loss = -NAME(row_sum)(at->losses, wide);
  const REAL *row = (const REAL *)group->critic[0].value + at->n * group->critic[0].stride;
  REAL *of_actions = NAME(backward)(head, row, at->read, wide, at->head, at->grad, at->other, at->turned, 0, at->spare,
                                    call->features + ids);
  REAL *grad = of_actions == at->grad ? at->other : at->grad;
  for (int64_t g = 0; g < group->count; g++) {
    const TeamAgent *agent = call->agent + group->agents[g];
    const REAL *of_own = of_actions + agent->start * wide + g * columns, *y = relaxed + g * width * columns;
    for (int64_t j = 0; j < width; j++)
      for (int64_t b = 0; b < columns; b++) grad[j * wide + g * columns + b] = of_own[j * wide + b];
    for (int64_t c = 0, start = 0; c < agent->components; start += agent->sizes[c], c++)
      for (int64_t b = 0; b < columns; b++) {
        REAL mean = 0; /* d y_j / d score = y_j (1[j] - y) / temperature */
        for (int64_t j = start; j < start + agent->sizes[c]; j++) mean = FMA(y[j * columns + b], of_own[j * wide + b], mean);
        for (int64_t j = start; j < start + agent->sizes[c]; j++) {
          int64_t i = j * wide + g * columns + b;
          int is_legal = b >= batch || !call->obs_mask || call->obs_mask[(from + b) * call->choices + agent->legal + j];
          REAL slope = y[j * columns + b] * (of_own[j * wide + b] - mean) * (REAL)(1 / call->temperature);
          REAL decay = 2 * (REAL)LOGIT_DECAY / (REAL)width * at->weight[g * columns + b];
          grad[i] = FMA(decay, outputs[i], is_legal ? slope : 0);
        }
      }
  }
  NAME(Rate) rate;
  NAME(next_step)(&group->actor, at->n, &rate);
  NAME(backward)(policy, value, at->seen, wide, at->policy, grad, grad == at->grad ? at->other : at->grad, at->turned,
                 at->gradient, at->spare, 0);
  int64_t start = at->n * group->actor.stride;
  NAME(descend)(policy, &rate, at->gradient, value, (REAL *)group->actor.first + start, (REAL *)group->actor.second + start);
  return loss;
}

static void NAME(team_member)(const TeamActorCritic *call, int64_t n) {
  REAL tau = (REAL)call->tau[n];
  NAME(TeamWork) work, *at = &work;
  for (int64_t u = 0; u < call->updates; u++) {
    int64_t number = u * call->members + n, from = number * call->batch, inputs = call->inputs, columns;
    int moves = (call->number + u) % call->policy_interval == 0;
    REAL loss = 0, actor_loss = 0;
    for (int64_t g = 0; g < call->groups; g++) {
      NAME(team_lay_out)(call, call->group + g, n, call->rows.room, at);
      if (!g) {
        columns = at->columns;
        NAME(load_rows)((const REAL *)call->joint + from * inputs, call->batch, inputs, columns, at->joint);
        NAME(load_rows)((const REAL *)call->next_joint + from * inputs, call->batch, inputs, columns, at->next_joint);
        NAME(team_taken)(at, u);
      }
      NAME(team_following)(at, u);
    }
    for (int64_t g = 0; g < call->groups; g++) {
      const TeamGroup *group = call->group + g;
      NAME(team_lay_out)(call, group, n, call->rows.room, at);
      columns = at->columns;
      for (int64_t k = 0; k < call->twins; k++) {
        NAME(team_read)(at, k, group->critic[k].target, at->next_joint, at->following);
        const REAL *q = NAME(team_values)(at, k, group->critic[k].target);
        for (int64_t i = 0; i < at->wide; i++) at->goals[i] = k ? NAME(smaller)(at->goals[i], q[i]) : q[i];
      }
      for (int64_t k = 0; k < group->count; k++) {
        REAL *goals = at->goals + k * columns, *reward = at->spare, *discount = reward + columns;
        NAME(of_agent)(at, call->reward, u, group->agents[k], reward);
        NAME(of_agent)(at, call->discount, u, group->agents[k], discount);
        NAME(of_agent)(at, call->weight, u, group->agents[k], at->weight + k * columns);
        for (int64_t b = 0; b < columns; b++) goals[b] = FMA(discount[b], goals[b], reward[b]);
      }
      for (int64_t k = 0; k < call->twins; k++) loss += NAME(team_fit)(at, u, k);
      if (!moves) continue;
      actor_loss += NAME(team_improve)(at, u);
      for (int64_t k = 0; k < call->twins; k++) {
        int64_t start = n * group->critic[k].stride;
        REAL *value = (REAL *)group->critic[k].value + start, *target = (REAL *)group->critic[k].target + start;
        NAME(track)(group->encoder[k] + n, tau, value, target), NAME(track)(group->head[k] + n, tau, value, target);
      }
    }
    for (int64_t g = 0; g < call->groups && moves; g++) {
      const Rows *rows = &call->group[g].actor;
      int64_t start = n * rows->stride;
      NAME(track)(call->group[g].policy + n, tau, (REAL *)rows->value + start, (REAL *)rows->target + start);
    }
    ((REAL *)call->loss)[number] = loss, ((REAL *)call->actor_loss)[number] = actor_loss;
  }
}

static void NAME(team)(const TeamActorCritic *call) {
  for (int64_t n = call->rows.begin; n < call->rows.end; n++)
    if (!call->live || call->live[n]) NAME(team_member)(call, n);
}
