/* Convolutions of one member, without copies of patches: as a batch lies as [channels][height][width][columns], the
 * numbers that one weight meets are whole columns, side by side for the positions of an output row where the stride is 1.
 */

static inline int64_t NAME(positions)(const Layer *layer) {
  if (!layer->channels) return 1;
  return ((layer->height + 2 * layer->pad_height - layer->kernel_height) / layer->stride_height + 1) *
         ((layer->width + 2 * layer->pad_width - layer->kernel_width) / layer->stride_width + 1);
}

/* Rows and columns of a layer's weight. */
static inline int64_t NAME(units)(const Layer *layer) { return layer->out / NAME(positions)(layer); }
static inline int64_t NAME(terms)(const Layer *layer) {
  return layer->channels ? layer->channels * layer->kernel_height * layer->kernel_width : layer->in;
}

/* Numbers of an image with its padding; 0 where none is added. */
static inline int64_t NAME(padded_size)(const Layer *layer) {
  if (!layer->channels || !(layer->pad_height || layer->pad_width)) return 0;
  return layer->channels * (layer->height + 2 * layer->pad_height) * (layer->width + 2 * layer->pad_width);
}

/* Numbers of a column's patches for one row of outputs. */
static inline int64_t NAME(patch_size)(const Layer *layer) {
  if (!layer->channels) return 0;
  return NAME(terms)(layer) * ((layer->width + 2 * layer->pad_width - layer->kernel_width) / layer->stride_width + 1);
}

/* Where a convolution's numbers lie: `spans` runs of `length` numbers for each of `rows` rows of outputs; from run to run
 * outputs are `length` and inputs `span` numbers apart, from row to row `out_row` and `in_row`; planes of an input are
 * `plane` numbers apart, and its lines `line`. */
typedef struct {
  int64_t rows, spans, length, span, out_row, in_row, plane, line, columns, size;
} NAME(Windows);

static NAME(Windows) NAME(windows)(const Layer *layer, int64_t columns) {
  int64_t high = layer->height + 2 * layer->pad_height, wide = layer->width + 2 * layer->pad_width;
  int64_t across = (wide - layer->kernel_width) / layer->stride_width + 1, whole = layer->stride_width == 1;
  NAME(Windows) at = {.rows = (high - layer->kernel_height) / layer->stride_height + 1, .columns = columns};
  at.spans = whole ? 1 : across, at.length = whole ? across * columns : columns;
  at.span = layer->stride_width * columns, at.out_row = across * columns, at.line = wide * columns;
  at.in_row = layer->stride_height * at.line, at.plane = high * at.line, at.size = at.rows * at.out_row;
  return at;
}

/* The image with zeros around it, or the image itself without padding. */
static const REAL *NAME(pad)(const Layer *layer, const REAL *image, int64_t columns, REAL *padded) {
  if (!NAME(padded_size)(layer)) return image;
  int64_t wide = (layer->width + 2 * layer->pad_width) * columns, line = layer->width * columns;
  int64_t high = layer->height + 2 * layer->pad_height;
  memset(padded, 0, (size_t)(NAME(padded_size)(layer) * columns) * sizeof(REAL));
  for (int64_t c = 0; c < layer->channels; c++)
    for (int64_t y = 0; y < layer->height; y++)
      memcpy(padded + (c * high + y + layer->pad_height) * wide + layer->pad_width * columns,
             image + (c * layer->height + y) * line, (size_t)line * sizeof(REAL));
  return padded;
}

/* out[m][.] = start[m] + the sum over channels, lines and places of a kernel, in this order. */
static inline __attribute__((always_inline)) void NAME(window_tile)(
    const int rows, const int vectors, const Layer *layer, const NAME(Windows) *at, const REAL *weight, const REAL *image,
    const REAL *start, REAL *out) {
  V sums[4][4];
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < vectors; v++) sums[m][v] = V_SET(start[m]);
  for (int64_t c = 0; c < layer->channels; c++)
    for (int64_t y = 0; y < layer->kernel_height; y++) {
      const REAL *right = image + c * at->plane + y * at->line;
      for (int64_t x = 0; x < layer->kernel_width; x++, weight++, right += at->columns) {
        V terms[4];
        for (int v = 0; v < vectors; v++) terms[v] = V_LOAD(right + v * LANES);
        for (int m = 0; m < rows; m++) {
          V factor = V_SET(weight[m * layer->weight_row]);
          for (int v = 0; v < vectors; v++) sums[m][v] = V_FMA(factor, terms[v], sums[m][v]);
        }
      }
    }
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < vectors; v++) V_STORE(out + m * at->size + v * LANES, sums[m][v]);
}

/* sums[units][positions][columns] of a convolution of `image`, padded. */
static void NAME(convolve)(const Layer *layer, const REAL *row, const REAL *image, int64_t columns, REAL *sums) {
  NAME(Windows) at = NAME(windows)(layer, columns);
  int64_t units = NAME(units)(layer), m, i;
#define TILE(R, N) NAME(window_tile)(R, N, layer, &at, row + layer->weight + m * layer->weight_row, from + i, \
                                     row + layer->bias + m, to + m * at.size + i)
#define TILES(N)                                 \
  for (m = 0; m + 4 <= units; m += 4) TILE(4, N); \
  for (; m < units; m++) TILE(1, N);
  for (int64_t y = 0; y < at.rows; y++)
    for (int64_t s = 0; s < at.spans; s++) {
      const REAL *from = image + y * at.in_row + s * at.span;
      REAL *to = sums + y * at.out_row + s * at.length;
      for (i = 0; i + 4 * LANES <= at.length; i += 4 * LANES) { TILES(4) }
      for (; i + 2 * LANES <= at.length; i += 2 * LANES) { TILES(2) }
      for (; i < at.length; i += LANES) { TILES(1) }
    }
#undef TILES
#undef TILE
}

#undef DOTS
#define DOTS (VECTOR == 512 ? 4 : 2)

/* out[m][v] = the sum over positions and columns of grad[m] times the numbers that weight v meets: 16 partial sums, each
 * in order, joined pairwise. */
static inline __attribute__((always_inline)) void NAME(dots_tile)(
    const int rows, const int terms, const NAME(Windows) *at, const REAL *grad, const REAL *image, const int64_t *offsets,
    REAL *out, int64_t out_row) {
  REAL part[4][4][16];
  for (int half = 0; half < 16; half += LANES) {
    V sums[4][4];
    for (int m = 0; m < rows; m++)
      for (int v = 0; v < terms; v++) sums[m][v] = V_SET((REAL)0);
    for (int64_t y = 0; y < at->rows; y++)
      for (int64_t s = 0; s < at->spans; s++) {
        const REAL *left = grad + y * at->out_row + s * at->length + half;
        const REAL *right = image + y * at->in_row + s * at->span + half;
        for (int64_t i = 0; i < at->length; i += 16) {
          V x[4];
          for (int v = 0; v < terms; v++) x[v] = V_LOAD(right + offsets[v] + i);
          for (int m = 0; m < rows; m++) {
            V g = V_LOAD(left + m * at->size + i);
            for (int v = 0; v < terms; v++) sums[m][v] = V_FMA(g, x[v], sums[m][v]);
          }
        }
      }
    for (int m = 0; m < rows; m++)
      for (int v = 0; v < terms; v++) V_STORE(part[m][v] + half, sums[m][v]);
  }
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < terms; v++) {
      for (int width = 8; width; width /= 2)
        for (int j = 0; j < width; j++) part[m][v][j] += part[m][v][j + width];
      out[m * out_row + v] = part[m][v][0];
    }
}

/* The gradient [units][wide] of a convolution's weight, zero beyond its terms. */
static void NAME(convolution_weight)(const Layer *layer, const REAL *image, const REAL *grad, int64_t columns,
                                     REAL *of_weight, int64_t wide) {
  NAME(Windows) at = NAME(windows)(layer, columns);
  int64_t units = NAME(units)(layer), terms = NAME(terms)(layer), area = layer->kernel_height * layer->kernel_width;
#define TILE(R, N) NAME(dots_tile)(R, N, &at, grad + m * at.size, image, offsets, of_weight + m * wide + k, wide)
#define TILES(N)                                 \
  for (m = 0; m + 4 <= units; m += 4) TILE(4, N); \
  for (; m < units; m++) TILE(1, N);
  for (int64_t k = 0, m; k < terms;) {
    int64_t offsets[4], count = k + DOTS <= terms ? DOTS : 1;
    for (int64_t v = 0; v < count; v++) {
      int64_t n = k + v, y = n % area / layer->kernel_width, x = n % layer->kernel_width;
      offsets[v] = n / area * at.plane + y * at.line + x * columns;
    }
    if (count == DOTS) {
      TILES(DOTS)
    } else {
      TILES(1)
    }
    k += count;
  }
#undef TILES
#undef TILE
  for (int64_t m = 0; m < units; m++)
    for (int64_t k = terms; k < wide; k++) of_weight[m * wide + k] = 0;
}

/* out[in][columns] = the gradient at a convolution's inputs; patches: `patch_size` columns. */
static void NAME(convolution_input)(const Layer *layer, const REAL *value, const REAL *grad, int64_t columns, REAL *out,
                                    REAL *patches) {
  NAME(Windows) at = NAME(windows)(layer, columns);
  int64_t terms = NAME(terms)(layer), line = layer->width * columns, across = at.out_row / columns;
  memset(out, 0, (size_t)(layer->in * columns) * sizeof(REAL));
  for (int64_t row = 0; row < at.rows; row++) {
    NAME(product)(terms, NAME(units)(layer), at.out_row, value + layer->weight, 1, layer->weight_row,
                  grad + row * at.out_row, at.size, 0, patches, at.out_row);
    const REAL *from = patches;
    for (int64_t c = 0; c < layer->channels; c++)
      for (int64_t ky = 0; ky < layer->kernel_height; ky++)
        for (int64_t kx = 0; kx < layer->kernel_width; kx++, from += at.out_row) {
          int64_t y = row * layer->stride_height + ky - layer->pad_height;
          if (y < 0 || y >= layer->height) continue;
          REAL *into = out + (c * layer->height + y) * line;
          for (int64_t p = 0; p < across; p++) {
            int64_t x = p * layer->stride_width + kx - layer->pad_width;
            if (x < 0 || x >= layer->width) continue;
            for (int64_t b = 0; b < columns; b++) into[x * columns + b] += from[p * columns + b];
          }
        }
  }
}
