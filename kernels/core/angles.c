/*
 * angles.c - from rope parameters to inverse frequencies, one function per
 * scaling variant.
 *
 * Every step is written once, in double, and rounded by fl(): to float32 for
 * angle_precision f32, not at all for f64. A float32 sum, product, quotient or
 * root computed in double and then rounded is the correctly rounded float32
 * one, so this is float32 arithmetic to the bit, with a correctly rounded
 * power, as the tables of PyTorch have it.
 */
#include <roped/angles.h>

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

size_t roped_angles_frequency_bytes(int64_t n_pairs, int32_t precision)
{
    return (size_t)n_pairs *
           (precision == ROPED_ANGLE_F64 ? sizeof(double) : sizeof(float));
}

int64_t roped_angles_pairs(const struct roped_angle_params *params,
                           int64_t rotary_dim, int64_t head_dim)
{
    if (params->scaling == ROPED_SCALING_PROPORTIONAL)
        return head_dim / 2;
    return rotary_dim / 2;
}

/* -------------------------------------------------------------- sections */

int roped_angles_section(const struct roped_angle_params *params, int64_t pair)
{
    const struct roped_ints *section = &params->mrope_section;
    int s = 0;
    if (params->mrope_interleaved) {
        s = (int)(pair % section->count);
        return pair < section->count * section->value[s] ? s : 0;
    }
    if (pair < params->mrope_turns * section->value[0])
        return (int)(pair % params->mrope_turns);
    while (s + 1 < section->count && pair >= section->value[s])
        pair -= section->value[s++];
    return s;
}

bool roped_angles_are_axial(const struct roped_angle_params *params)
{
    return params->scaling == ROPED_SCALING_AXIAL ||
           params->scaling == ROPED_SCALING_AXIAL_DEALT;
}

static enum roped_status check_turns(const struct roped_angle_params *params,
                                     struct roped_error *err)
{
    const struct roped_ints *section = &params->mrope_section;
    int64_t turns = params->mrope_turns;
    if (turns == 0)
        return ROPED_OK;
    if (params->mrope_interleaved)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameters 'mrope_turns' and 'mrope_interleaved' "
                          "are both given, expected one");
    if (turns < 2 || turns > section->count)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'mrope_turns': %lld, expected 2 to %d, "
                          "the counts of mrope_section",
                          (long long)turns, section->count);
    for (int s = 1; s < turns; s++)
        if (section->value[s] != section->value[0])
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter 'mrope_section': %lld and %lld, "
                              "expected equal counts where mrope_turns = %lld "
                              "sections take turns",
                              (long long)section->value[0],
                              (long long)section->value[s], (long long)turns);
    return ROPED_OK;
}

enum roped_status
roped_angles_check_sections(const struct roped_angle_params *params,
                            int64_t n_pairs, struct roped_error *err)
{
    const struct roped_ints *section = &params->mrope_section;
    const struct roped_ints *axes = &params->mrope_axes;
    int64_t sum = 0;
    if (section->count == 1)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'mrope_section': 1 count, expected 2 to "
                          "%d",
                          ROPED_MAX_AXES);
    if (axes->count && axes->count != section->count)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'mrope_axes': %d rows, expected %d, one "
                          "for each count of mrope_section",
                          axes->count, section->count);
    for (int i = 0; i < section->count; i++) {
        sum += section->value[i];
        if (axes->value[i] >= section->count)
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter 'mrope_axes': row %lld, expected 0 "
                              "to %d",
                              (long long)axes->value[i], section->count - 1);
    }
    if (section->count && n_pairs && sum != n_pairs)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'mrope_section': sum %lld, expected "
                          "rotary_dim/2 = %lld",
                          (long long)sum, (long long)n_pairs);
    return check_turns(params, err);
}

/* -------------------------------------------------------------- variants */

/* One resolution under way. */
struct work {
    const struct roped_angle_params *params;
    const struct roped_longrope_factors *factors; /* given, or NULL */
    const void *ext;                              /* the list of them in use */
    int64_t r;                                    /* rotary width */
    int64_t d;                                    /* head width */
    int64_t longest;                              /* largest position + 1 */
    double theta;
    double factor;
    double original; /* original_max_position */
    bool is_f32;
    /* yarn */
    double low, high;
};

static double fl(const struct work *work, double x)
{
    return work->is_f32 ? (double)(float)x : x;
}

/* P_i = theta^(2i / width) */
static double power(const struct work *work, int64_t i, int64_t width)
{
    double exponent = fl(work, (double)(2 * i) / (double)width);
    return fl(work, pow(work->theta, exponent));
}

static double plain(const struct work *work, int64_t i)
{
    return fl(work, 1 / power(work, i, work->r));
}

static double linear(const struct work *work, int64_t i)
{
    return fl(work, plain(work, i) / fl(work, work->factor));
}

static double proportional(const struct work *work, int64_t i)
{
    if (2 * i >= work->r)
        return 0;
    double f = fl(work, 1 / power(work, i, work->d));
    return isnan(work->factor) ? f : fl(work, f / fl(work, work->factor));
}

/* Pairs before pair i in its section. Sections that take turns are equal. */
static int64_t place_in_section(const struct roped_angle_params *params,
                                int64_t i)
{
    int section = roped_angles_section(params, i);
    if (params->mrope_interleaved)
        return i / params->mrope_section.count;
    if (section < params->mrope_turns)
        return i / params->mrope_turns;
    for (int s = 0; s < section; s++)
        i -= params->mrope_section.value[s];
    return i;
}

/* Frequencies begin anew in each section. */
static double axial(const struct work *work, int64_t i)
{
    const struct roped_angle_params *params = work->params;
    int section = roped_angles_section(params, i);
    return fl(work, 1 / power(work, place_in_section(params, i),
                              2 * params->mrope_section.value[section]));
}

/* Sections take the frequencies of the whole head in turns. */
static double axial_dealt(const struct work *work, int64_t i)
{
    const struct roped_angle_params *params = work->params;
    int64_t turn = place_in_section(params, i) * params->mrope_section.count;
    return plain(work, turn + roped_angles_section(params, i));
}

static double ntk(const struct work *work, int64_t i)
{
    double b = work->params->mixed_b;
    double half = (double)work->r / 2;
    if (isnan(b)) { /* theta is already theta * factor */
        double shrink = pow(work->factor, 2 / (double)work->r);
        return fl(work, plain(work, i) / fl(work, shrink));
    }
    double a = log(work->factor) / pow(half, b);
    double stretch = exp(a * pow((double)(i + 1), b));
    return fl(work, plain(work, i) / fl(work, stretch));
}

static double llama3(const struct work *work, int64_t i)
{
    double low = work->params->low_freq_factor;
    double high = work->params->high_freq_factor;
    double f = plain(work, i);
    double wavelength = fl(work, fl(work, 2 * PI) / f);
    if (wavelength < fl(work, work->original / high))
        return f;
    double scaled = fl(work, f / fl(work, work->factor));
    if (wavelength > fl(work, work->original / low))
        return scaled;
    double t = fl(work, fl(work, work->original) / wavelength);
    t = fl(work, fl(work, t - fl(work, low)) / fl(work, high - low));
    double slow = fl(work, fl(work, 1 - t) * f);
    return fl(work, fl(work, slow / fl(work, work->factor)) + fl(work, t * f));
}

static double yarn(const struct work *work, int64_t i)
{
    double p = power(work, i, work->r);
    double interpolated = fl(work, 1 / fl(work, fl(work, work->factor) * p));
    double extrapolated = fl(work, 1 / p);
    double ramp = fl(work, fl(work, (double)i - fl(work, work->low)) /
                               fl(work, work->high - work->low));
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    double weight = fl(work, 1 - ramp);
    return fl(work, fl(work, interpolated * fl(work, 1 - weight)) +
                        fl(work, extrapolated * weight));
}

/* Lists of a request's body begin at any byte. */
static float factor_at(const void *factors, int64_t i)
{
    float factor;
    memcpy(&factor, (const char *)factors + (size_t)i * sizeof factor,
           sizeof factor);
    return factor;
}

static double longrope(const struct work *work, int64_t i)
{
    double p = power(work, i, work->r);
    return fl(work, 1 / fl(work, (double)factor_at(work->ext, i) * p));
}

/* ---------------------------------------------------------------- set-up */

static const char *const scaling_names[ROPED_SCALING_COUNT] = {
#define SCALING(id, name, ...) #name,
#include <roped/scaling.def>
};

const char roped_scaling_choices[] =
#define SCALING(id, name, ...) "|" #name
#include <roped/scaling.def>
    ;

static enum roped_status need(const struct roped_angle_params *params,
                              double value, const char *name,
                              struct roped_error *err)
{
    if (!isnan(value))
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "missing parameter '%s': scaling %s needs it", name,
                      scaling_names[params->scaling]);
}

static double as_double(int64_t value)
{
    return value == ROPED_UNSET_INT ? ROPED_UNSET_FLOAT : (double)value;
}

static enum roped_status setup_dynamic(struct work *work,
                                       struct roped_error *err)
{
    const struct roped_angle_params *params = work->params;
    if (work->r <= 2)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rotary_dim': 2, expected 4 or more with "
                          "scaling dynamic (its exponent is r / (r - 2))");
    double exponent = (double)work->r / (double)(work->r - 2);
    if (!isnan(params->alpha)) {
        work->theta *= pow(params->alpha, exponent);
        return ROPED_OK;
    }
    enum roped_status status = need(params, params->factor, "factor", err);
    if (!status)
        status =
            need(params, as_double(params->max_position), "max_position", err);
    if (status)
        return status;
    double max = (double)params->max_position;
    double longest = (double)work->longest > max ? (double)work->longest : max;
    double grown = params->factor * longest / max - (params->factor - 1);
    /* PyTorch rounds a base to float32 before it raises it to a power */
    work->theta = fl(work, work->theta * pow(grown, exponent));
    return ROPED_OK;
}

static bool dynamic_follows(const struct roped_angle_params *params)
{
    return isnan(params->alpha);
}

static enum roped_status setup_axial(struct work *work, struct roped_error *err)
{
    const struct roped_angle_params *params = work->params;
    const struct roped_ints *section = &params->mrope_section;
    bool has_turns = params->mrope_interleaved ||
                     params->scaling == ROPED_SCALING_AXIAL_DEALT;
    if (section->count == 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "missing parameter 'mrope_section': scaling %s needs "
                          "it",
                          scaling_names[params->scaling]);
    for (int s = 1; s < section->count && has_turns; s++)
        if (section->value[s] != section->value[0])
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter 'mrope_section': %lld and %lld, "
                              "expected equal counts where sections take "
                              "turns",
                              (long long)section->value[0],
                              (long long)section->value[s]);
    return ROPED_OK;
}

static enum roped_status setup_ntk(struct work *work, struct roped_error *err)
{
    (void)err;
    if (isnan(work->params->mixed_b))
        work->theta *= work->factor;
    return ROPED_OK;
}

static enum roped_status setup_llama3(struct work *work,
                                      struct roped_error *err)
{
    const struct roped_angle_params *params = work->params;
    if (params->low_freq_factor < params->high_freq_factor)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter 'low_freq_factor': %g, expected less "
                      "than high_freq_factor = %g",
                      params->low_freq_factor, params->high_freq_factor);
}

/* The pair whose wavelength turns rotations times over the original length */
static double correction_dim(const struct work *work, double rotations)
{
    return (double)work->r * log(work->original / (rotations * 2 * PI)) /
           (2 * log(work->theta));
}

/* Of yarn and longrope, where it is not given. */
static void derive_factor(struct work *work)
{
    int64_t max = work->params->max_position;
    if (isnan(work->factor) && max != ROPED_UNSET_INT)
        work->factor = (double)max / work->original;
}

static enum roped_status setup_yarn(struct work *work, struct roped_error *err)
{
    const struct roped_angle_params *params = work->params;
    derive_factor(work);
    enum roped_status status = need(params, work->factor, "factor", err);
    if (!status && work->theta == 1)
        status = roped_fail(err, ROPED_BAD_PARAMETER,
                            "parameter 'theta': 1, expected another value "
                            "with scaling yarn (it divides by its logarithm)");
    if (status)
        return status;
    work->low = correction_dim(work, params->beta_fast);
    work->high = correction_dim(work, params->beta_slow);
    if (params->truncate) {
        work->low = floor(work->low);
        work->high = ceil(work->high);
    }
    if (work->low < 0)
        work->low = 0;
    if (work->high > (double)(work->r - 1))
        work->high = (double)(work->r - 1);
    if (work->low == work->high)
        work->high += 0.001;
    return ROPED_OK;
}

static enum roped_status check_factors(const char *name, const void *factors,
                                       int64_t count, int64_t n_pairs,
                                       struct roped_error *err)
{
    if (!factors)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s': scaling longrope needs it",
                          name);
    if (count != n_pairs)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': dim 0 is %lld, expected r/2 = %lld",
                          name, (long long)count, (long long)n_pairs);
    for (int64_t i = 0; i < count; i++) {
        float factor = factor_at(factors, i);
        if (!(factor > 0) || isinf(factor))
            return roped_fail(err, ROPED_BAD_VALUE,
                              "tensor '%s': value %g at index %lld, expected "
                              "a finite value above 0",
                              name, (double)factor, (long long)i);
    }
    return ROPED_OK;
}

static bool longrope_follows(const struct roped_angle_params *params)
{
    return params->longrope == ROPED_LONGROPE_AUTO;
}

static enum roped_status setup_longrope(struct work *work,
                                        struct roped_error *err)
{
    const struct roped_longrope_factors *f = work->factors;
    bool is_long = longrope_follows(work->params)
                       ? (double)work->longest > work->original
                       : work->params->longrope == ROPED_LONGROPE_LONG;
    derive_factor(work);
    enum roped_status status =
        check_factors("short_factor", f ? f->short_factor : NULL,
                      f ? f->count : 0, work->r / 2, err);
    if (!status)
        status = check_factors("long_factor", f ? f->long_factor : NULL,
                               f ? f->count : 0, work->r / 2, err);
    if (!status)
        work->ext = is_long ? f->long_factor : f->short_factor;
    return status;
}

/* 0.1 * c * ln s + 1 for s > 1 */
static double yarn_magnitude(double s, double c)
{
    return s <= 1 ? 1 : 0.1 * c * log(s) + 1;
}

static double yarn_attention(const struct work *work)
{
    const struct roped_angle_params *params = work->params;
    /* as Hugging Face does: both, and neither of them 0 */
    if (params->mscale > 0 && params->mscale_all_dim > 0)
        return yarn_magnitude(work->factor, params->mscale) /
               yarn_magnitude(work->factor, params->mscale_all_dim);
    return yarn_magnitude(work->factor, 1);
}

/* vLLM's: each of the two has a default of its own, and 0 is a value. */
static double deepseek_attention(const struct work *work)
{
    double mscale = work->params->mscale;
    double all_dim = work->params->mscale_all_dim;
    return yarn_magnitude(work->factor, isnan(mscale) ? 1 : mscale) /
           yarn_magnitude(work->factor, isnan(all_dim) ? 0 : all_dim);
}

static double longrope_attention(const struct work *work)
{
    return isnan(work->factor) || work->factor <= 1
               ? 1
               : sqrt(1 + log(work->factor) / log(work->original));
}

/* --------------------------------------------------------------- the table */

enum {
    NEEDS_FACTOR = 1,
    NEEDS_LOW = 2,
    NEEDS_HIGH = 4,
    NEEDS_ORIGINAL = 8,
    NEEDS_LENGTH = 16 /* original_max_position, else max_position */
};

static const struct variant {
    unsigned needs;
    enum roped_status (*setup)(struct work *work, struct roped_error *err);
    double (*frequency)(const struct work *work, int64_t i);
    double (*attention)(const struct work *work);
    bool (*follows)(const struct roped_angle_params *params);
} variants[ROPED_SCALING_COUNT] = {
#define SCALING(id, name, config_name, older_name, is_stretched, ...)          \
    {__VA_ARGS__},
#include <roped/scaling.def>
};

bool roped_angles_depend_on_position(const struct roped_angle_params *params)
{
    const struct variant *variant = &variants[params->scaling];
    return variant->follows && variant->follows(params);
}

static enum roped_status check_needs(const struct work *work, unsigned needs,
                                     struct roped_error *err)
{
    const struct roped_angle_params *params = work->params;
    const struct {
        unsigned need;
        const char *name;
        double value;
    } keys[] = {{NEEDS_FACTOR, "factor", params->factor},
                {NEEDS_LOW, "low_freq_factor", params->low_freq_factor},
                {NEEDS_HIGH, "high_freq_factor", params->high_freq_factor},
                {NEEDS_ORIGINAL, "original_max_position",
                 as_double(params->original_max_position)},
                {NEEDS_LENGTH, "original_max_position", work->original}};
    enum roped_status status = ROPED_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !status; i++)
        if (needs & keys[i].need)
            status = need(params, keys[i].value, keys[i].name, err);
    return status;
}

static enum roped_status setup(struct work *work, const struct variant *variant,
                               struct roped_error *err)
{
    enum roped_status status = check_needs(work, variant->needs, err);
    return status || !variant->setup ? status : variant->setup(work, err);
}

static double attention(const struct work *work, const struct variant *variant)
{
    double given = work->params->attention_factor;
    if (!variant->attention)
        return 1;
    return isnan(given) ? variant->attention(work) : given;
}

/* ---------------------------------------------------------------- resolve */

/*
 * Calls of one model ask for the same frequencies again and again, and 64
 * powers take as long as the rest of a small call's plan. So each thread keeps
 * the last ones that follow from parameters and widths alone.
 */
enum { KEPT_PAIRS = 128 };

struct kept {
    struct roped_angle_params params;      /* compared bit by bit */
    int64_t rotary_dim, head_dim, n_pairs; /* n_pairs 0: nothing is kept */
    float attention_factor;
    _Alignas(double) unsigned char storage[KEPT_PAIRS * sizeof(double)];
};

static _Thread_local struct kept kept;

static bool can_keep(const struct roped_angle_params *params, int64_t n_pairs)
{
    return n_pairs <= KEPT_PAIRS && params->scaling != ROPED_SCALING_LONGROPE &&
           !roped_angles_depend_on_position(params);
}

static bool is_kept(const struct roped_angle_params *params, int64_t rotary_dim,
                    int64_t head_dim)
{
    return kept.n_pairs > 0 && kept.rotary_dim == rotary_dim &&
           kept.head_dim == head_dim &&
           memcmp(&kept.params, params, sizeof *params) == 0;
}

static void keep(const struct roped_angle_params *params, int64_t rotary_dim,
                 int64_t head_dim, const struct roped_angles *angles)
{
    memcpy(&kept.params, params, sizeof *params);
    kept.rotary_dim = rotary_dim;
    kept.head_dim = head_dim;
    kept.n_pairs = angles->n_pairs;
    kept.attention_factor = angles->attention_factor;
    memcpy(kept.storage, angles->frequency.f32,
           roped_angles_frequency_bytes(angles->n_pairs, angles->precision));
}

static enum roped_status compute_frequencies(struct work *work, void *storage,
                                             struct roped_angles *out,
                                             struct roped_error *err)
{
    const struct roped_angle_params *params = work->params;
    const struct variant *variant = &variants[params->scaling];
    work->theta = params->theta;
    work->factor = params->factor;
    work->original = as_double(params->original_max_position);
    work->is_f32 = params->angle_precision == ROPED_ANGLE_F32;
    if (isnan(work->original))
        work->original = as_double(params->max_position);
    enum roped_status status = setup(work, variant, err);
    if (status)
        return status;
    out->attention_factor = (float)attention(work, variant);
    for (int64_t i = 0; i < out->n_pairs; i++) {
        if (work->is_f32)
            ((float *)storage)[i] = (float)variant->frequency(work, i);
        else
            ((double *)storage)[i] = variant->frequency(work, i);
    }
    return ROPED_OK;
}

enum roped_status
roped_angles_resolve(const struct roped_angle_params *params,
                     const struct roped_longrope_factors *factors,
                     int64_t rotary_dim, int64_t head_dim,
                     int64_t largest_position, void *storage,
                     struct roped_angles *out, struct roped_error *err)
{
    out->n_pairs = roped_angles_pairs(params, rotary_dim, head_dim);
    out->precision = params->angle_precision;
    out->frequency.f32 = storage;
    if (is_kept(params, rotary_dim, head_dim)) {
        out->attention_factor = kept.attention_factor;
        memcpy(storage, kept.storage,
               roped_angles_frequency_bytes(out->n_pairs, out->precision));
        return ROPED_OK;
    }
    struct work work = {.params = params,
                        .factors = factors,
                        .r = rotary_dim,
                        .d = head_dim,
                        .longest = largest_position + 1};
    enum roped_status status = compute_frequencies(&work, storage, out, err);
    if (!status && can_keep(params, out->n_pairs))
        keep(params, rotary_dim, head_dim, out);
    return status;
}

bool roped_angles_equal(const struct roped_angles *a,
                        const struct roped_angles *b)
{
    return a->n_pairs == b->n_pairs && a->precision == b->precision &&
           memcmp(&a->attention_factor, &b->attention_factor,
                  sizeof a->attention_factor) == 0 &&
           memcmp(a->frequency.f32, b->frequency.f32,
                  roped_angles_frequency_bytes(a->n_pairs, a->precision)) == 0;
}

/* FNV-1a over words of four bytes: precision, factor and frequencies are such,
 * and byte by byte is four times as long for a key of every call. */
static uint64_t hash_words(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, (const unsigned char *)data + at, sizeof word);
        hash = (hash ^ word) * 0x100000001B3u;
        hash ^= hash >> 32;
    }
    return hash;
}

uint64_t roped_angles_hash(const struct roped_angles *angles)
{
    uint64_t hash = 0xCBF29CE484222325u;
    hash = hash_words(hash, &angles->precision, sizeof angles->precision);
    hash = hash_words(hash, &angles->attention_factor,
                      sizeof angles->attention_factor);
    return hash_words(
        hash, angles->frequency.f32,
        roped_angles_frequency_bytes(angles->n_pairs, angles->precision));
}
