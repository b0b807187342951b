/* exp, log and their kin, element by element: the same bits on every machine, with no call into a libm.
 *
 * Written without branches on values, so that loops over them become vector code. NaN stays NaN.
 */

/* 2^n for integer n in [-126, 127] ([-1022, 1023] in double). */
static inline REAL NAME(power_of_two)(REAL n) {
#ifdef DOUBLE
  union { int64_t bits; double value; } u;
  u.bits = ((int64_t)n + 1023) << 52;
#else
  union { int32_t bits; float value; } u;
  u.bits = ((int32_t)n + 127) << 23;
#endif
  return u.value;
}

/* e^r - 1 for |r| <= ln(2) / 2: the Taylor series, whose remainder is below half a unit in the last place. */
static inline REAL NAME(expm1_reduced)(REAL r) {
#ifdef DOUBLE
  REAL p = 1.0 / 87178291200.0;
  p = FMA(p, r, 1.0 / 6227020800.0);
  p = FMA(p, r, 1.0 / 479001600.0);
  p = FMA(p, r, 1.0 / 39916800.0);
  p = FMA(p, r, 1.0 / 3628800.0);
  p = FMA(p, r, 1.0 / 362880.0);
  p = FMA(p, r, 1.0 / 40320.0);
  p = FMA(p, r, 1.0 / 5040.0);
#else
  REAL p = 1.0f / 40320.0f;
  p = FMA(p, r, 1.0f / 5040.0f);
#endif
  p = FMA(p, r, (REAL)1 / 720);
  p = FMA(p, r, (REAL)1 / 120);
  p = FMA(p, r, (REAL)1 / 24);
  p = FMA(p, r, (REAL)1 / 6);
  p = FMA(p, r, (REAL)1 / 2);
  return FMA(p * r, r, r);
}

/* x = n ln(2) + r with integer n; x is held within the range whose powers of two are normal numbers. */
static inline REAL NAME(reduce)(REAL x, REAL *n) {
#ifdef DOUBLE
  const REAL limit = 708, high = 0x1.62e42fefa38p-1, low = 0x1.ef35793c7673p-45;
#else
  const REAL limit = 87, high = 0x1.62e4p-1f, low = 0x1.7f7d1cp-20f;
#endif
  x = x > limit ? limit : x;
  x = x < -limit ? -limit : x;
  *n = RINT((x < limit ? x : limit) * (REAL)1.4426950408889634074); /* finite for NaN: it is converted to an integer */
  return FMA(*n, -low, FMA(*n, -high, x));
}

static inline REAL NAME(exp)(REAL x) {
  REAL n, r = NAME(reduce)(x, &n);
  return FMA(NAME(power_of_two)(n), NAME(expm1_reduced)(r), NAME(power_of_two)(n));
}

static inline REAL NAME(expm1)(REAL x) {
  REAL n, r = NAME(reduce)(x, &n), scale = NAME(power_of_two)(n);
  return FMA(scale, NAME(expm1_reduced)(r), scale - 1);
}

static inline REAL NAME(sigmoid)(REAL x) { return 1 / (1 + NAME(exp)(-x)); }

static inline REAL NAME(tanh)(REAL x) {
  REAL e = NAME(expm1)(2 * (x < 0 ? -x : x));
  REAL t = e / (e + 2);
  return x < 0 ? -t : t;
}

/* log(1 + x) for x >= 0: 2 atanh(s) of the mantissa, and what 1 + x has lost to rounding. */
static inline REAL NAME(log1p)(REAL x) {
  REAL u = 1 + x, lost = (x - (u - 1)) / u;
#ifdef DOUBLE
  union { int64_t bits; double value; } m;
  m.value = u;
  int64_t e = ((m.bits - 0x3fe6a09e667f3bcdLL) >> 52);
  m.bits -= e * (1LL << 52);
  const REAL high = 0x1.62e42fefa38p-1, low = 0x1.ef35793c7673p-45;
#else
  union { int32_t bits; float value; } m;
  m.value = u;
  int32_t e = ((m.bits - 0x3f3504f3) >> 23);
  m.bits -= e * (1 << 23);
  const REAL high = 0x1.62e4p-1f, low = 0x1.7f7d1cp-20f;
#endif
  REAL f = m.value - 1, s = f / (2 + f), z = s * s;
#ifdef DOUBLE
  REAL p = (REAL)2 / 23;
  p = FMA(p, z, (REAL)2 / 21);
  p = FMA(p, z, (REAL)2 / 19);
  p = FMA(p, z, (REAL)2 / 17);
  p = FMA(p, z, (REAL)2 / 15);
  p = FMA(p, z, (REAL)2 / 13);
  p = FMA(p, z, (REAL)2 / 11);
#else
  REAL p = (REAL)2 / 11;
#endif
  p = FMA(p, z, (REAL)2 / 9);
  p = FMA(p, z, (REAL)2 / 7);
  p = FMA(p, z, (REAL)2 / 5);
  p = FMA(p, z, (REAL)2 / 3);
  REAL log_mantissa = FMA(p * z, s, 2 * s);
  return FMA((REAL)e, high, FMA((REAL)e, low, log_mantissa + lost));
}

/* exp(x^2) erfc(x) for x >= 0 as a polynomial in t = (x - 3.75) / (x + 3.75), highest power first: the Chebyshev
 * interpolant of 40 digits' precision, relative error below 1e-15 (double) and 1e-9 (float). */
#ifdef DOUBLE
static const REAL NAME(erfc_terms)[] = {
    3.1313656969998803e-12, 7.213443089199085e-12, -3.6939067266721566e-11, -9.638458698073178e-11,
    2.4983510890891653e-10, 7.645974646476383e-10, -1.4589215299236375e-09, -5.0713154050810496e-09,
    9.351898594553126e-09, 3.168462645636384e-08, -7.277429799612875e-08, -1.8355817556830943e-07,
    6.595416052571512e-07, 7.486304237699419e-07, -6.1834642915724345e-06, 3.583684622094389e-06,
    4.789878837536803e-05, -0.0001524626577088716, -2.5535332014440353e-05, 0.0018029624157128942,
    -0.008220621154047673, 0.024143223972534097, -0.05480232669498312, 0.10260431203219418,
    -0.1635718955239238, 0.22600806691662145, -0.2734219314954265, 0.14558972127503855};
#else
static const REAL NAME(erfc_terms)[] = {
    -4.214496957728027e-06f, 5.1519905481064915e-06f, 4.5172440758857574e-05f, -0.00015420186273565375f,
    -2.3534184749948e-05f, 0.001804018103018107f, -0.008221420615127758f, 0.02414288022578585f,
    -0.05480216141744726f, 0.10260436658249793f, -0.16357191065852983f, 0.22600806362573378f,
    -0.27342193109337154f, 0.14558972130773434f};
#endif

/* The standard normal distribution function and its density. */
static inline REAL NAME(normal)(REAL x, REAL *density) {
  REAL positive = x < 0 ? -x : x, y = positive * (REAL)0.70710678118654752440;
  REAL t = (y - (REAL)3.75) / (y + (REAL)3.75), p = NAME(erfc_terms)[0];
  for (int k = 1; k < (int)(sizeof NAME(erfc_terms) / sizeof(REAL)); k++) p = FMA(p, t, NAME(erfc_terms)[k]);
  REAL bell = NAME(exp)((REAL)-0.5 * (x * x)), tail = (REAL)0.5 * (bell * p);
  *density = bell * (REAL)0.39894228040143267794;
  return x < 0 ? tail : 1 - tail;
}
