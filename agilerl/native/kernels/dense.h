/* Layers of one member: products, forward, backward, Adam.
 *
 * Inside, a batch lies as [features][columns], `columns` the batch rounded up to a whole number of the widest vectors
 * (PADDED); numbers beyond the batch are zero where a sum could meet them.
 */

#ifdef VECTOR
#include "simd.h"
#define TILE_ROWS 6
#define TILE_VECTORS (VECTOR == 512 ? 4 : 2)

/* out[m][.] = start[m] + sum over k of left[m][k] right[k][.] for `rows` x `vectors` results held in registers. */
static inline __attribute__((always_inline)) void NAME(tile)(
    const int rows, const int vectors, int64_t depth, const REAL *left, int64_t row_step, int64_t term_step,
    const REAL *right, int64_t right_row, const REAL *start, REAL *out, int64_t out_row) {
  V sums[TILE_ROWS][4];
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < vectors; v++) sums[m][v] = V_SET(start ? start[m] : (REAL)0);
  for (int64_t k = 0; k < depth; k++) {
    V terms[4];
    for (int v = 0; v < vectors; v++) terms[v] = V_LOAD(right + k * right_row + v * LANES);
    for (int m = 0; m < rows; m++) {
      V factor = V_SET(left[m * row_step + k * term_step]);
      for (int v = 0; v < vectors; v++) sums[m][v] = V_FMA(factor, terms[v], sums[m][v]);
    }
  }
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < vectors; v++) V_STORE(out + m * out_row + v * LANES, sums[m][v]);
}

/* out[rows][columns] = start[rows] + left[rows][depth] right[depth][columns]; columns are whole vectors of 16 numbers. */
static void NAME(product)(int64_t rows, int64_t depth, int64_t columns, const REAL *left, int64_t row_step,
                          int64_t term_step, const REAL *right, int64_t right_row, const REAL *start, REAL *out,
                          int64_t out_row) {
#define TILE(R, N) NAME(tile)(R, N, depth, left + m * row_step, row_step, term_step, right + c, right_row, \
                              start ? start + m : 0, out + m * out_row + c, out_row)
#define TILES(N)                                                                                                     \
  for (m = 0; m + TILE_ROWS <= rows; m += TILE_ROWS) TILE(TILE_ROWS, N);                                             \
  switch (rows - m) {                                                                                                \
  case 5: TILE(5, N); break;                                                                                         \
  case 4: TILE(4, N); break;                                                                                         \
  case 3: TILE(3, N); break;                                                                                         \
  case 2: TILE(2, N); break;                                                                                         \
  case 1: TILE(1, N); break;                                                                                         \
  }
  int64_t m, c = 0;
  for (; c + TILE_VECTORS * LANES <= columns; c += TILE_VECTORS * LANES) { TILES(TILE_VECTORS) }
  for (; c + 2 * LANES <= columns; c += 2 * LANES) { TILES(2) }
  for (; c < columns; c += LANES) { TILES(1) }
#undef TILES
#undef TILE
}

#include "convolution.h"

/* out[columns][rows_padded] = in[rows][columns] turned around, zero beyond its rows. */
static void NAME(transpose)(int64_t rows, int64_t columns, const REAL *in, REAL *out) {
  int64_t wide = PADDED(rows), whole = rows / BLOCK * BLOCK;
  for (int64_t r = 0; r < whole; r += BLOCK)
    for (int64_t c = 0; c < columns; c += BLOCK) NAME(turn)(in + r * columns + c, columns, out + c * wide + r, wide);
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = whole; r < wide; r++) out[c * wide + r] = r < rows ? in[r * columns + c] : 0;
}

static int64_t NAME(widest)(const Member *member) {
  int64_t widest = member->layers[0].in;
  for (int l = 0; l < member->depth; l++) {
    const Layer *layer = member->layers + l;
    int64_t patches = NAME(patch_size)(layer), width = layer->out > patches ? layer->out : patches;
    if (width > widest) widest = width;
  }
  return widest;
}

/* What one layer keeps for its backward: sums before the activation (of LayerNorm: its results), outputs, of LayerNorm
 * the normalised sums and the inverse deviations, and of a convolution the images with their padding. */
typedef struct {
  REAL *sums, *outputs, *normalised, *inverse, *padded;
} NAME(Kept);

static int64_t NAME(kept_size)(const Member *member, int64_t columns) {
  int64_t size = 0;
  for (int l = 0; l < member->depth; l++) size += (3 * member->layers[l].out + 1 + NAME(padded_size)(member->layers + l)) * columns;
  return size;
}

static void NAME(lay_out)(const Member *member, int64_t columns, REAL *room, NAME(Kept) *kept) {
  for (int l = 0; l < member->depth; l++) {
    int64_t size = member->layers[l].out * columns;
    kept[l].sums = room, kept[l].outputs = room + size, kept[l].normalised = room + 2 * size;
    kept[l].inverse = room + 3 * size, kept[l].padded = room + 3 * size + columns;
    room = kept[l].padded + NAME(padded_size)(member->layers + l) * columns;
  }
}

/* LayerNorm (Ba et al. 2016, arXiv:1607.06450, eq. 4) of the columns of x [width][columns], in place. */
static void NAME(normalise)(int64_t width, int64_t columns, REAL *restrict x, REAL *restrict inverse,
                            REAL *restrict spare) {
  REAL share = (REAL)1 / (REAL)width;
  for (int64_t b = 0; b < columns; b++) spare[b] = inverse[b] = 0;
  for (int64_t o = 0; o < width; o++)
    for (int64_t b = 0; b < columns; b++) spare[b] = FMA(share, x[o * columns + b], spare[b]);
  for (int64_t o = 0; o < width; o++)
    for (int64_t b = 0; b < columns; b++) {
      REAL centred = x[o * columns + b] - spare[b];
      x[o * columns + b] = centred, inverse[b] = FMA(share * centred, centred, inverse[b]);
    }
  for (int64_t b = 0; b < columns; b++) inverse[b] = 1 / SQRT(inverse[b] + (REAL)1e-5);
  for (int64_t o = 0; o < width; o++)
    for (int64_t b = 0; b < columns; b++) x[o * columns + b] *= inverse[b];
}

/* grad := inverse (grad - mean(grad) - normalised mean(grad normalised)), means over the width. */
static void NAME(normalise_backward)(int64_t width, int64_t columns, const REAL *restrict normalised,
                                     const REAL *restrict inverse, REAL *restrict grad, REAL *restrict spare) {
  REAL share = (REAL)1 / (REAL)width, *restrict slope = spare + columns;
  for (int64_t b = 0; b < columns; b++) spare[b] = slope[b] = 0;
  for (int64_t o = 0; o < width; o++)
    for (int64_t b = 0; b < columns; b++) {
      REAL g = grad[o * columns + b];
      spare[b] = FMA(share, g, spare[b]), slope[b] = FMA(share * g, normalised[o * columns + b], slope[b]);
    }
  for (int64_t o = 0; o < width; o++)
    for (int64_t b = 0; b < columns; b++) {
      int64_t i = o * columns + b;
      grad[i] = inverse[b] * FMA(-normalised[i], slope[b], grad[i] - spare[b]);
    }
}

/* Run all layers of `row` on inputs [in][columns]; the outputs are kept[depth - 1].outputs. */
static void NAME(forward)(const Member *member, const REAL *row, const REAL *inputs, int64_t columns,
                          NAME(Kept) *kept, REAL *spare) {
  for (int l = 0; l < member->depth; l++) {
    const Layer *layer = member->layers + l;
    int64_t size = layer->out * columns;
    if (layer->channels)
      NAME(convolve)(layer, row, NAME(pad)(layer, inputs, columns, kept[l].padded), columns, kept[l].sums);
    else
      NAME(product)(layer->out, layer->in, columns, row + layer->weight, layer->weight_row, 1, inputs, columns,
                    row + layer->bias, kept[l].sums, columns);
    if (layer->norm) {
      REAL *x = kept[l].normalised;
      memcpy(x, kept[l].sums, (size_t)size * sizeof(REAL));
      NAME(normalise)(layer->out, columns, x, kept[l].inverse, spare);
      for (int64_t o = 0; o < layer->out; o++) {
        REAL gain = row[layer->gain + o], shift = row[layer->shift + o];
        for (int64_t b = 0; b < columns; b++) kept[l].sums[o * columns + b] = FMA(gain, x[o * columns + b], shift);
      }
    }
    NAME(activate)(layer->activation, kept[l].sums, kept[l].outputs, size);
    inputs = kept[l].outputs;
  }
}

/* The sum over the columns of one row: 16 partial sums, each in order, joined pairwise. */
static REAL NAME(row_sum)(const REAL *x, int64_t columns) {
  REAL part[16] = {0};
  for (int64_t b = 0; b < columns; b += 16)
    for (int j = 0; j < 16; j++) part[j] += x[b + j];
  for (int half = 8; half; half /= 2)
    for (int j = 0; j < half; j++) part[j] += part[j + half];
  return part[0];
}

/* Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) for `count` numbers side by side; AdamW decays first. */
static void NAME(adam)(const NAME(Rate) *rate, int64_t count, const REAL *restrict grad, REAL *restrict value,
                       REAL *restrict first, REAL *restrict second) {
  for (int64_t i = 0; i < count; i++) {
    REAL v = value[i] * rate->keep, g = FMA(rate->decay, v, grad[i]);
    REAL m = FMA(rate->first_share, g - first[i], first[i]);
    REAL s = FMA(rate->second_share * g, g, second[i] * rate->second_keep);
    first[i] = m, second[i] = s;
    value[i] = v - rate->step * m / FMA(SQRT(s), rate->root, rate->eps);
  }
}

/* The gradient of one member lies layer by layer: bias, of LayerNorm gain and shift, weight [units][PADDED(terms)]; zeros
 * fill each layer up to a whole number of the widest vectors. */
static int64_t NAME(gradient_size)(const Member *member) {
  int64_t size = 0;
  for (int l = 0; l < member->depth; l++) {
    const Layer *layer = member->layers + l;
    size += PADDED(NAME(units)(layer) * (PADDED(NAME(terms)(layer)) + (layer->norm ? 3 : 1)));
  }
  return size;
}

/* Write the gradient of the layers, given grad [out][columns] at the outputs; grad and other are overwritten, one of
 * them by the gradient at the last `wanted` inputs, which is returned. A null gradient is not written. */
static REAL *NAME(backward)(const Member *member, const REAL *value, const REAL *inputs, int64_t columns,
                            const NAME(Kept) *kept, REAL *grad, REAL *other, REAL *turned, REAL *gradient, REAL *spare,
                            int64_t wanted) {
  const int writes = gradient != 0;
  if (writes) gradient += NAME(gradient_size)(member);
  for (int l = member->depth - 1; l >= 0; l--) {
    const Layer *layer = member->layers + l;
    int64_t units = NAME(units)(layer), wide = PADDED(NAME(terms)(layer)), size = layer->out * columns;
    int64_t count = units * (wide + (layer->norm ? 3 : 1));
    const REAL *below = l ? kept[l - 1].outputs : inputs;
    if (writes) {
      gradient -= PADDED(count);
      for (int64_t i = count; i < PADDED(count); i++) gradient[i] = 0;
    }
    NAME(activate_backward)(layer->activation, kept[l].sums, kept[l].outputs, grad, size);
    if (layer->norm) {
      for (int64_t o = 0; o < layer->out; o++) {
        REAL *g = grad + o * columns, gain = value[layer->gain + o];
        const REAL *x = kept[l].normalised + o * columns;
        if (writes) gradient[2 * layer->out + o] = NAME(row_sum)(g, columns); /* of the shift */
        for (int64_t b = 0; b < columns; b++) spare[b] = g[b] * x[b], g[b] *= gain;
        if (writes) gradient[layer->out + o] = NAME(row_sum)(spare, columns); /* of the gain */
      }
      NAME(normalise_backward)(layer->out, columns, kept[l].normalised, kept[l].inverse, grad, spare);
    }
    if (writes) {
      REAL *of_weight = gradient + (layer->norm ? 3 : 1) * units;
      int64_t along = size / units; /* of the bias: */
      for (int64_t o = 0; o < units; o++) gradient[o] = NAME(row_sum)(grad + o * along, along);
      if (layer->channels) {
        NAME(convolution_weight)(layer, NAME(padded_size)(layer) ? kept[l].padded : below, grad, columns, of_weight, wide);
      } else {
        NAME(transpose)(layer->in, columns, below, turned);
        NAME(product)(layer->out, columns, wide, grad, columns, 1, turned, wide, 0, of_weight, wide);
      }
    }
    int64_t into = l ? layer->in : wanted;
    if (into && layer->channels)
      NAME(convolution_input)(layer, value, grad, columns, other, turned);
    else if (into)
      NAME(product)(into, layer->out, columns, value + layer->weight + layer->in - into, 1, layer->weight_row, grad,
                    columns, 0, other, columns);
    REAL *swap = grad;
    grad = other, other = swap;
  }
  return grad;
}

/* The soft move of the target network: target += tau (value - target) (Lillicrap et al. 2016, arXiv:1509.02971). */
static void NAME(track)(const Member *member, REAL tau, const REAL *value, REAL *target) {
  for (int l = 0; l < member->depth; l++) {
    const Layer *layer = member->layers + l;
    int64_t units = NAME(units)(layer), terms = NAME(terms)(layer);
    for (int64_t o = 0; o < units; o++) {
      REAL *t = target + layer->weight + o * layer->weight_row;
      const REAL *v = value + layer->weight + o * layer->weight_row;
      for (int64_t i = 0; i < terms; i++) t[i] = FMA(tau, v[i] - t[i], t[i]);
    }
    int64_t parts[3] = {layer->bias, layer->gain, layer->shift};
    for (int p = 0; p < (layer->norm ? 3 : 1); p++) {
      REAL *t = target + parts[p];
      const REAL *v = value + parts[p];
      for (int64_t o = 0; o < units; o++) t[o] = FMA(tau, v[o] - t[o], t[o]);
    }
  }
}

/* [B][I] rows as [I][columns]; zero beyond the batch. */
static void NAME(load_rows)(const REAL *rows, int64_t batch, int64_t inputs, int64_t columns, REAL *out) {
  for (int64_t i = 0; i < inputs; i++) {
    for (int64_t b = 0; b < batch; b++) out[i * columns + b] = rows[b * inputs + i];
    for (int64_t b = batch; b < columns; b++) out[i * columns + b] = 0;
  }
}

/* Scale a gradient to a norm of at most `limit` (Pascanu et al. 2013, arXiv:1211.5063, algorithm 1, with the 1e-6 of
 * torch.nn.utils.clip_grad_norm_). */
static void NAME(clip)(int64_t size, REAL limit, REAL *gradient) {
  REAL part[16] = {0};
  for (int64_t i = 0; i < size; i += 16)
    for (int j = 0; j < 16; j++) part[j] = FMA(gradient[i + j], gradient[i + j], part[j]);
  REAL share = limit / (SQRT(NAME(row_sum)(part, 16)) + (REAL)1e-6);
  share = share > 1 ? 1 : share;
  for (int64_t i = 0; i < size; i++) gradient[i] *= share;
}

/* Move the parameters of one member by Adam. */
static void NAME(descend)(const Member *member, const NAME(Rate) *rate, const REAL *gradient, REAL *value, REAL *first,
                          REAL *second) {
  for (int l = 0; l < member->depth; l++) {
    const Layer *layer = member->layers + l;
    int64_t units = NAME(units)(layer), terms = NAME(terms)(layer), wide = PADDED(terms), vectors = layer->norm ? 3 : 1;
    int64_t parts[3] = {layer->bias, layer->gain, layer->shift};
    for (int64_t p = 0; p < vectors; p++)
      NAME(adam)(rate, units, gradient + p * units, value + parts[p], first + parts[p], second + parts[p]);
    const REAL *of_weight = gradient + vectors * units;
    for (int64_t o = 0; o < units; o++) {
      int64_t at = layer->weight + o * layer->weight_row;
      NAME(adam)(rate, terms, of_weight + o * wide, value + at, first + at, second + at);
    }
    gradient += PADDED(units * (wide + vectors));
  }
}

/* Take the next step of a member's optimiser: what Adam needs of it. */
static void NAME(next_step)(const Rows *rows, int64_t n, NAME(Rate) *rate) {
  double step = rows->steps[n] += 1, power1 = 1, power2 = 1, base1 = rows->beta1, base2 = rows->beta2;
  for (int64_t k = (int64_t)step; k; k /= 2) { /* integer powers by squaring: no libm */
    if (k % 2) power1 *= base1, power2 *= base2;
    base1 *= base1, base2 *= base2;
  }
  double lr = rows->lr[n];
  rate->keep = (REAL)(rows->decouples_decay ? 1 - lr * rows->decay : 1);
  rate->decay = (REAL)(rows->decouples_decay ? 0 : rows->decay);
  rate->first_share = (REAL)(1 - rows->beta1);
  rate->second_share = (REAL)(1 - rows->beta2), rate->second_keep = (REAL)rows->beta2;
  rate->step = (REAL)(lr / (1 - power1)), rate->root = (REAL)(1 / __builtin_sqrt(1 - power2));
  rate->eps = (REAL)rows->eps;
}
#endif
