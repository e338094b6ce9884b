/*
 * nearest.c - the word that was meant: another name of it, or the fewest
 * letters to change.
 */
#include <roped/nearest.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What other libraries call it. None that means something else: a layer norm is
 * no rmsnorm. */
static const struct {
    const char *alias, *known;
} aliases[] = {
    {"epsilon", "eps"},
    {"variance_epsilon", "eps"},
    {"rms_norm_eps", "eps"},
    {"layer_norm_eps", "eps"},
    {"base", "theta"},
    {"rope_base", "theta"},
    {"rope_theta", "theta"},
    {"interleave", "style"},
    {"interleaved", "style"},
    {"rope_interleave", "style"},
    {"is_neox", "style"},
    {"is_neox_style", "style"},
    {"rope_type", "scaling"},
    {"rope_scaling", "scaling"},
    {"scaling_factor", "factor"},
    {"max_position_embeddings", "max_position"},
    {"original_max_position_embeddings", "original_max_position"},
    {"rms_norm", "rmsnorm"},
    {"add_rms_norm", "add_rmsnorm"},
    {"fused_add_rmsnorm", "add_rmsnorm"},
    {"fused_add_rms_norm", "add_rmsnorm"},
    {"rms_norm_add", "rmsnorm_add"},
    {"rmsnorm_gated", "gated_rmsnorm"},
    {"rms_norm_gated", "gated_rmsnorm"},
    {"layernorm", "layer_norm"},
    {"add_layernorm", "add_layer_norm"},
    {"silu_and_mul", "act_and_mul"},
    {"gelu_and_mul", "act_and_mul"},
    {"gelu_tanh_and_mul", "act_and_mul"},
    {"swiglu", "act_and_mul"},
    {"geglu", "act_and_mul"},
    {"silu_mul", "act_and_mul"},
    {"rms_norm_backward", "rmsnorm_backward"},
    {"native_layer_norm_backward", "layer_norm_backward"},
    {"silu_and_mul_backward", "act_and_mul_backward"},
    {"swiglu_backward", "act_and_mul_backward"},
    {"geglu_backward", "act_and_mul_backward"},
    {"hidden_act", "activation"},
    {"swiglu_limit", "limit"},
    {"rotary", "rope"},
    {"rotary_emb", "rope"},
    {"rotary_embedding", "rope"},
    {"apply_rope", "rope"},
    {"apply_rotary_emb", "rope"},
    {"apply_rotary_pos_emb", "rope"},
};

static bool is_alias(const char *word, const char *known)
{
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].alias, word) == 0 &&
            strcmp(aliases[i].known, known) == 0)
            return true;
    return false;
}

static int least(int a, int b, int c)
{
    int smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

/* Letters to change, add, leave out or swap with the next one; words over 63
 * letters are 64 apart. */
static int distance_of(const char *a, const char *b)
{
    enum { LONGEST = ROPED_NEAREST_BYTES - 1 };
    int rows[3][LONGEST + 1];
    size_t n = strlen(b), i;
    if (n > LONGEST || strlen(a) > LONGEST)
        return LONGEST + 1;
    for (size_t j = 0; j <= n; j++)
        rows[0][j] = (int)j;
    for (i = 0; a[i]; i++) {
        const int *before = rows[(i + 2) % 3], *above = rows[i % 3];
        int *row = rows[(i + 1) % 3];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < n; j++) {
            row[j + 1] =
                least(above[j] + (a[i] != b[j]), row[j] + 1, above[j + 1] + 1);
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
                row[j + 1] = least(row[j + 1], before[j - 1] + 1, LONGEST);
        }
    }
    return rows[i % 3][n];
}

void roped_nearest_offer(struct roped_nearest *nearest, const char *known)
{
    int length = (int)strlen(nearest->word);
    int distance =
        is_alias(nearest->word, known) ? 0 : distance_of(nearest->word, known);
    int most = length < 6 ? 1 : length / 3;
    if (distance > most || distance >= length ||
        (nearest->found[0] && distance >= nearest->distance))
        return;
    snprintf(nearest->found, sizeof nearest->found, "%s", known);
    nearest->distance = distance;
}

const char *roped_nearest_text(const struct roped_nearest *nearest, char *text,
                               size_t text_bytes)
{
    text[0] = '\0';
    if (nearest->found[0])
        snprintf(text, text_bytes, "; did you mean '%s'?", nearest->found);
    return text;
}
