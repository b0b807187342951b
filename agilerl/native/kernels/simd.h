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
