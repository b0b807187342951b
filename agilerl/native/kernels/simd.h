/* Vectors of REAL for one instruction set, as a few macros. Included once for each kind of vector and of REAL.
 *
 * Results do not depend on the width of a vector: a sum runs over its terms in order in every lane, multiplications and
 * additions are joined explicitly (V_FMA), and compilers are told not to join others (-ffp-contract=off).
 */
#undef V
#undef LANES
#undef V_LOAD
#undef V_STORE
#undef V_SET
#undef V_FMA

#if VECTOR == 512 && !defined(DOUBLE)
#define V __m512
#define LANES 16
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SET(x) _mm512_set1_ps(x)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#elif VECTOR == 512
#define V __m512d
#define LANES 8
#define V_LOAD(p) _mm512_loadu_pd(p)
#define V_STORE(p, v) _mm512_storeu_pd(p, v)
#define V_SET(x) _mm512_set1_pd(x)
#define V_FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#elif VECTOR == 256 && !defined(DOUBLE)
#define V __m256
#define LANES 8
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SET(x) _mm256_set1_ps(x)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#elif VECTOR == 256
#define V __m256d
#define LANES 4
#define V_LOAD(p) _mm256_loadu_pd(p)
#define V_STORE(p, v) _mm256_storeu_pd(p, v)
#define V_SET(x) _mm256_set1_pd(x)
#define V_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#elif VECTOR == 128 && !defined(DOUBLE) /* NEON */
#define V float32x4_t
#define LANES 4
#define V_LOAD(p) vld1q_f32(p)
#define V_STORE(p, v) vst1q_f32(p, v)
#define V_SET(x) vdupq_n_f32(x)
#define V_FMA(a, b, c) vfmaq_f32(c, a, b)
#elif VECTOR == 128
#define V float64x2_t
#define LANES 2
#define V_LOAD(p) vld1q_f64(p)
#define V_STORE(p, v) vst1q_f64(p, v)
#define V_SET(x) vdupq_n_f64(x)
#define V_FMA(a, b, c) vfmaq_f64(c, a, b)
#endif

/* Turn a square of BLOCK x BLOCK numbers around, from rows `in_row` apart to rows `out_row` apart. */
#undef BLOCK
#if VECTOR > 128 && !defined(DOUBLE)
#define BLOCK 8
static inline void NAME(turn)(const REAL *in, int64_t in_row, REAL *out, int64_t out_row) {
  __m256 x[8], y[8];
  for (int k = 0; k < 8; k++) x[k] = _mm256_loadu_ps(in + k * in_row);
  for (int k = 0; k < 4; k++) {
    y[2 * k] = _mm256_unpacklo_ps(x[2 * k], x[2 * k + 1]);
    y[2 * k + 1] = _mm256_unpackhi_ps(x[2 * k], x[2 * k + 1]);
  }
  for (int h = 0; h < 2; h++)
    for (int k = 0; k < 2; k++) {
      x[4 * h + 2 * k] = _mm256_shuffle_ps(y[4 * h + k], y[4 * h + k + 2], 0x44);
      x[4 * h + 2 * k + 1] = _mm256_shuffle_ps(y[4 * h + k], y[4 * h + k + 2], 0xee);
    }
  for (int k = 0; k < 4; k++) {
    _mm256_storeu_ps(out + k * out_row, _mm256_permute2f128_ps(x[k], x[k + 4], 0x20));
    _mm256_storeu_ps(out + (k + 4) * out_row, _mm256_permute2f128_ps(x[k], x[k + 4], 0x31));
  }
}
#elif VECTOR > 128
#define BLOCK 4
static inline void NAME(turn)(const REAL *in, int64_t in_row, REAL *out, int64_t out_row) {
  __m256d x[4], y[4];
  for (int k = 0; k < 4; k++) x[k] = _mm256_loadu_pd(in + k * in_row);
  for (int k = 0; k < 2; k++) {
    y[2 * k] = _mm256_unpacklo_pd(x[2 * k], x[2 * k + 1]);
    y[2 * k + 1] = _mm256_unpackhi_pd(x[2 * k], x[2 * k + 1]);
  }
  for (int k = 0; k < 2; k++) {
    _mm256_storeu_pd(out + k * out_row, _mm256_permute2f128_pd(y[k], y[k + 2], 0x20));
    _mm256_storeu_pd(out + (k + 2) * out_row, _mm256_permute2f128_pd(y[k], y[k + 2], 0x31));
  }
}
#else
#define BLOCK 4
static inline void NAME(turn)(const REAL *in, int64_t in_row, REAL *out, int64_t out_row) {
  for (int k = 0; k < BLOCK; k++)
    for (int j = 0; j < BLOCK; j++) out[j * out_row + k] = in[k * in_row + j];
}
#endif
