/* Outputs of dense networks for rows of observations.
 *
 * Rows run in blocks. As sums of `dense.h` run over the terms of each column in order, and its functions are computed
 * element by element, the bits of a row's outputs depend neither on the other rows of a block nor on where blocks end.
 */
#define FORWARD_BLOCK 64 /* rows; a multiple of 16 */

static inline int64_t NAME(rows_room)(const Forward *call, int64_t n) {
  const Member *member = call->member + n;
  return (member->layers[0].in + 1) * FORWARD_BLOCK + NAME(kept_size)(member, FORWARD_BLOCK);
}

static void NAME(rows_member)(const Forward *call, int64_t n) {
  const Member *member = call->member + n;
  int64_t inputs = member->layers[0].in, outputs = member->layers[member->depth - 1].out;
  const REAL *value = (const REAL *)call->rows.value + n * call->rows.stride;
  const REAL *rows = (const REAL *)call->obs + n * call->batch * inputs;
  REAL *out = (REAL *)call->outputs + n * call->batch * outputs;
  REAL *spare = (REAL *)call->rows.room, *obs = spare + FORWARD_BLOCK;
  NAME(Kept) kept[MAX_DEPTH];
  for (int64_t begin = 0; begin < call->batch; begin += FORWARD_BLOCK) {
    int64_t count = call->batch - begin < FORWARD_BLOCK ? call->batch - begin : FORWARD_BLOCK, columns = PADDED(count);
    NAME(lay_out)(member, columns, obs + inputs * columns, kept);
    NAME(load_rows)(rows + begin * inputs, count, inputs, columns, obs);
    NAME(forward)(member, value, obs, columns, kept, spare);
    const REAL *results = kept[member->depth - 1].outputs;
    for (int64_t b = 0; b < count; b++)
      for (int64_t o = 0; o < outputs; o++) out[(begin + b) * outputs + o] = results[o * columns + b];
  }
}

static void NAME(rows)(const Forward *call) {
  for (int64_t n = call->rows.begin; n < call->rows.end; n++) NAME(rows_member)(call, n);
}
