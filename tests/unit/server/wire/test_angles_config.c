/*
 * test_angles_config.c - rotary tables from config.json files as models ship
 * them: the members that matter and some of those that do not.
 */
#include "unit/server/wire/angle_sets.h"

#include <math.h>
#include <stdio.h>

static const char llama_3_1_8b[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,"
    "\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009],"
    "\"hidden_act\":\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,"
    "\"intermediate_size\":14336,\"max_position_embeddings\":131072,"
    "\"mlp_bias\":false,\"model_type\":\"llama\",\"num_attention_heads\":32,"
    "\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
    "\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":8.0,"
    "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
    "\"rope_theta\":500000.0,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\",\"vocab_size\":128256}";

static const char qwen_2_5_7b_yarn[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":3584,"
    "\"max_position_embeddings\":32768,\"max_window_layers\":28,"
    "\"model_type\":\"qwen2\",\"num_attention_heads\":28,"
    "\"num_key_value_heads\":4,\"rope_theta\":1000000.0,\"rope_scaling\":{"
    "\"factor\":4.0,\"original_max_position_embeddings\":32768,"
    "\"type\":\"yarn\"},\"sliding_window\":131072}";

static const char deepseek_v3[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"hidden_size\":7168,"
    "\"kv_lora_rank\":512,\"max_position_embeddings\":163840,"
    "\"model_type\":\"deepseek_v3\",\"num_attention_heads\":128,"
    "\"num_key_value_heads\":128,\"q_lora_rank\":1536,"
    "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"quantization_config\":"
    "{\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]},\"rope_scaling\":{"
    "\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,"
    "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,"
    "\"type\":\"yarn\"},\"rope_theta\":10000,\"v_head_dim\":128}";

/* gemma-3-1b-it, as published with transformers 4 */
static const char gemma_3_1b[] =
    "{\"architectures\":[\"Gemma3ForCausalLM\"],\"attn_logit_softcapping\":"
    "null,\"head_dim\":256,\"hidden_size\":1152,\"max_position_embeddings\":"
    "32768,\"model_type\":\"gemma3_text\",\"num_attention_heads\":4,"
    "\"rope_local_base_freq\":10000,\"rope_scaling\":null,\"rope_theta\":"
    "1000000,\"sliding_window\":512,\"sliding_window_pattern\":6}";

/* gemma-3-27b-it, as transformers 5 writes it */
static const char gemma_3_27b_v5[] =
    "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":"
    "\"gemma3\",\"text_config\":{\"head_dim\":128,\"hidden_size\":5376,"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
    "\"max_position_embeddings\":131072,\"model_type\":\"gemma3_text\","
    "\"num_attention_heads\":32,\"rope_parameters\":{\"full_attention\":{"
    "\"factor\":8.0,\"rope_theta\":1000000.0,\"rope_type\":\"linear\"},"
    "\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}}"
    "},\"vision_config\":{\"hidden_size\":1152,\"num_attention_heads\":16}}";

static const char qwen_2_vl_7b[] =
    "{\"architectures\":[\"Qwen2VLForConditionalGeneration\"],\"hidden_size\":"
    "3584,\"max_position_embeddings\":32768,\"model_type\":\"qwen2_vl\","
    "\"num_attention_heads\":28,\"num_key_value_heads\":4,\"rope_theta\":"
    "1000000.0,\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,"
    "24]},\"vision_config\":{\"depth\":32,\"embed_dim\":1280}}";

static const char phi_4_mini[] =
    "{\"model_type\":\"phi3\",\"hidden_size\":3072,\"num_attention_heads\":24,"
    "\"max_position_embeddings\":131072,\"original_max_position_embeddings\":"
    "4096,\"partial_rotary_factor\":0.75,\"rope_theta\":10000.0}";

TEST(llama_3_1)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    float storage[64];
    struct roped_angles angles;
    struct roped_error err;
    int n = read_sets("llama", llama_3_1_8b, sets);
    const struct roped_angle_set *set = &sets[0].set;
    CHECK_INT(n, 1);
    CHECK_TEXT(set->name, "llama");
    CHECK_INT(set->params.scaling, ROPED_SCALING_LLAMA3);
    CHECK_DOUBLE(set->params.theta, 500000, 0);
    CHECK_DOUBLE(set->params.factor, 8, 0);
    CHECK_DOUBLE(set->params.low_freq_factor, 1, 0);
    CHECK_DOUBLE(set->params.high_freq_factor, 4, 0);
    CHECK_INT(set->params.original_max_position, 8192);
    CHECK_INT(set->params.max_position, 131072);
    CHECK_INT(set->head_dim, 128);
    CHECK_INT(set->rotary_dim, 128);
    CHECK_INT(set->rows, 131072);
    CHECK_OK(roped_angles_resolve(&set->params, &set->factors, 128, 128, 0,
                                  storage, &angles, &err),
             &err);
    /* the ends: kept, and divided by 8 */
    CHECK_DOUBLE(storage[0], 1, 0);
    CHECK_DOUBLE(storage[63], pow(500000, -126.0 / 128) / 8, 1e-12);
    free_sets(sets, n);
}

TEST(qwen_2_5_with_yarn)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("qwen", qwen_2_5_7b_yarn, sets);
    const struct roped_angle_set *set = &sets[0].set;
    CHECK_INT(set->params.scaling, ROPED_SCALING_YARN);
    CHECK_DOUBLE(set->params.factor, 4, 0);
    CHECK_INT(set->params.original_max_position, 32768);
    CHECK_INT(set->head_dim, 128);
    CHECK_INT(set->rows, 131072); /* what yarn is there for */
    free_sets(sets, n);
}

TEST(deepseek_rotates_a_head_of_its_own)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("deepseek", deepseek_v3, sets);
    const struct roped_angle_set *set = &sets[0].set;
    CHECK_INT(set->head_dim, 64);
    CHECK_INT(set->rotary_dim, 64);
    CHECK_DOUBLE(set->params.theta, 10000, 0);
    CHECK_DOUBLE(set->params.factor, 40, 0);
    CHECK_DOUBLE(set->params.beta_fast, 32, 0);
    CHECK_DOUBLE(set->params.mscale, 1, 0);
    CHECK_DOUBLE(set->params.mscale_all_dim, 1, 0);
    CHECK_INT(set->rows, 163840);
    free_sets(sets, n);
}

/* Phi-3-mini-128k: 48 factors each; under both names of the type. */
TEST(phi_3_with_its_factor_lists)
{
    static const char *const types[] = {"longrope", "su"};
    for (int t = 0; t < 2; t++) {
        struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
        struct buffer json;
        buffer_init(&json);
        buffer_printf(&json,
                      "{\"model_type\":\"phi3\",\"hidden_size\":3072,"
                      "\"num_attention_heads\":32,\"max_position_embeddings\":"
                      "131072,\"original_max_position_embeddings\":4096,"
                      "\"rope_theta\":10000.0,\"rope_scaling\":{\"type\":"
                      "\"%s\"",
                      types[t]);
        for (int list = 0; list < 2; list++) {
            buffer_text(&json, list ? ",\"long_factor\":["
                                    : ",\"short_factor\""
                                      ":[");
            for (int i = 0; i < 48; i++)
                buffer_printf(&json, "%s%.2f", i ? "," : "",
                              1.0 + 0.05 * i + list);
            buffer_text(&json, "]");
        }
        buffer_text(&json, "}}");
        int n = read_sets("phi", json.text, sets);
        const struct roped_angle_set *set = &sets[0].set;
        CHECK_INT(set->params.scaling, ROPED_SCALING_LONGROPE);
        CHECK_INT(set->params.original_max_position, 4096);
        CHECK_INT(set->rotary_dim, 96);
        CHECK_INT(set->factors.count, 48);
        CHECK_DOUBLE(set->factors.short_factor[47], 3.35, 1e-6);
        CHECK_DOUBLE(set->factors.long_factor[47], 4.35, 1e-6);
        CHECK_INT(set->rows, 131072);
        free_sets(sets, n);
        buffer_fini(&json);
    }
}

TEST(gemma_3_has_two_bases)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("gemma", gemma_3_1b, sets);
    CHECK_INT(n, 2);
    CHECK_TEXT(sets[0].set.name, "gemma.full_attention");
    CHECK_DOUBLE(sets[0].set.params.theta, 1000000, 0);
    CHECK_TEXT(sets[1].set.name, "gemma.sliding_attention");
    CHECK_DOUBLE(sets[1].set.params.theta, 10000, 0);
    CHECK_INT(sets[1].set.params.scaling, ROPED_SCALING_NONE);
    CHECK_INT(sets[1].set.head_dim, 256); /* not 1152 / 4 */
    free_sets(sets, n);
    n = read_sets("x",
                  "{\"head_dim\":64,\"rope_local_base_freq\":7000,"
                  "\"rope_theta\":8000,\"rope_scaling\":{\"rope_type\":"
                  "\"linear\",\"factor\":8}}",
                  sets);
    CHECK_DOUBLE(sets[0].set.params.theta, 8000, 0);
    CHECK_INT(sets[0].set.params.scaling, ROPED_SCALING_LINEAR);
    CHECK_DOUBLE(sets[1].set.params.theta, 7000, 0);
    CHECK_INT(sets[1].set.params.scaling, ROPED_SCALING_NONE);
    free_sets(sets, n);
}

TEST(layer_types_become_tables)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("g", gemma_3_27b_v5, sets);
    CHECK_INT(n, 2);
    CHECK_TEXT(sets[0].set.name, "g.full_attention");
    CHECK_INT(sets[0].set.params.scaling, ROPED_SCALING_LINEAR);
    CHECK_DOUBLE(sets[0].set.params.factor, 8, 0);
    CHECK_DOUBLE(sets[0].set.params.theta, 1000000, 0);
    CHECK_TEXT(sets[1].set.name, "g.sliding_attention");
    CHECK_INT(sets[1].set.params.scaling, ROPED_SCALING_NONE);
    CHECK_DOUBLE(sets[1].set.params.theta, 10000, 0);
    CHECK_INT(sets[1].set.rotary_dim, 128);
    free_sets(sets, n);
}

TEST(qwen_2_vl_has_sections)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("vl", qwen_2_vl_7b, sets);
    const struct roped_angle_params *params = &sets[0].set.params;
    CHECK_INT(params->scaling, ROPED_SCALING_NONE);
    CHECK_INT(params->mrope_section.count, 3);
    CHECK_INT(params->mrope_section.value[0], 16);
    CHECK_INT(params->mrope_section.value[2], 24);
    CHECK_INT(params->mrope_interleaved, 0);
    CHECK_INT(sets[0].set.rotary_dim, 128);
    free_sets(sets, n);
}

TEST(partial_width_is_inside_or_outside)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("phi", phi_4_mini, sets);
    CHECK_INT(sets[0].set.head_dim, 128);
    CHECK_INT(sets[0].set.rotary_dim, 96);
    free_sets(sets, n);
    n = read_sets("x",
                  "{\"head_dim\":80,\"rope_parameters\":{\"rope_type\":"
                  "\"default\",\"partial_rotary_factor\":0.4,\"rope_theta\":"
                  "5000}}",
                  sets);
    CHECK_INT(sets[0].set.rotary_dim, 32);
    CHECK_DOUBLE(sets[0].set.params.theta, 5000, 0);
    free_sets(sets, n);
    n = read_sets("neox",
                  "{\"model_type\":\"gpt_neox\",\"hidden_size\":6144,"
                  "\"num_attention_heads\":64,\"rotary_pct\":0.25,"
                  "\"rotary_emb_base\":20000}",
                  sets);
    CHECK_INT(sets[0].set.rotary_dim, 24);
    CHECK_DOUBLE(sets[0].set.params.theta, 20000, 0);
    free_sets(sets, n);
}

TEST(nulls_and_zero_betas_are_defaults)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("x",
                      "{\"model_type\":\"llama\",\"head_dim\":64,"
                      "\"rope_theta\":null,\"rope_parameters\":{"
                      "\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":0,"
                      "\"beta_slow\":null,\"attention_factor\":null,"
                      "\"original_max_position_embeddings\":2048,"
                      "\"finetuned\":true}}",
                      sets);
    const struct roped_angle_params *params = &sets[0].set.params;
    CHECK_DOUBLE(params->theta, 10000, 0);
    CHECK_DOUBLE(params->beta_fast, 32, 0);
    CHECK_DOUBLE(params->beta_slow, 1, 0);
    CHECK(isnan(params->attention_factor));
    CHECK_INT(params->truncate, 1);
    free_sets(sets, n);
}

TEST(refuses_types_by_name)
{
    refuse("{\"head_dim\":64,\"rope_scaling\":{\"rope_type\":\"fope\"}}",
           "'rope_type' is 'fope', expected default, linear, dynamic, "
           "ntk, yarn, llama3, longrope, proportional, axial or deepseek_yarn");
    refuse("{\"head_dim\":64,\"rope_scaling\":{\"type\":5}}",
           "'rope_type' is 5, expected");
    refuse("{\"head_dim\":64,\"rope_scaling\":[]}",
           "'rope_scaling' is an array, expected an object");
    refuse("{\"head_dim\":64,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,"
           "\"original_max_position_embeddings\":64,\"attn_factor\":0.5}}",
           "'attn_factor' is 0.5");
    refuse("{\"head_dim\":64,\"rope_scaling\":{\"type\":\"longrope\","
           "\"short_mscale\":1.24}}",
           "'short_mscale' is 1.24");
}

TEST(refuses_values_out_of_range)
{
    refuse("{\"head_dim\":64,\"rope_theta\":0}", "parameter 'theta': 0");
    refuse("{\"head_dim\":64,\"rope_theta\":1e999}", "parameter 'theta'");
    refuse("{\"head_dim\":64,\"rope_scaling\":{\"type\":\"linear\",\"factor\":"
           "-2}}",
           "parameter 'factor': -2");
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,\"rope_scaling\":{\"type\":"
           "\"linear\"}}",
           "missing parameter 'factor'");
    refuse("{\"head_dim\":64,\"max_position_embeddings\":1.5,\"rope_theta\":1e4"
           "}",
           "parameter 'max_position': 1.5");
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,\"rope_scaling\":{\"type\":"
           "\"mrope\",\"mrope_interleaved\":false,\"mrope_section\":[16,24,"
           "24]}}",
           "parameter 'mrope_section': sum 64, expected rotary_dim/2 = 32");
}

TEST(refuses_widths_that_are_none)
{
    refuse("{\"rope_theta\":1e4}", "config: missing 'head_dim', or "
                                   "'hidden_size' and 'num_attention_heads'");
    refuse("{\"rope_theta\":1e4,\"hidden_size\":4096}",
           "config: missing 'head_dim'");
    refuse("{\"rope_theta\":1e4,\"hidden_size\":4096,"
           "\"num_attention_heads\":0}",
           "config: head width inf");
    refuse("{\"head_dim\":64.5,\"rope_theta\":1}", "config: head width 64.5");
    refuse("{\"head_dim\":10,\"rope_theta\":1e4,\"partial_rotary_factor\":0.5}",
           "'partial_rotary_factor' gives rotary width 5 of head width 10, "
           "expected an even number of 2 to 10");
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,\"partial_rotary_factor\":1.5}",
           "'partial_rotary_factor' is 1.5");
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,\"rotary_pct\":\"x\"}",
           "'rotary_pct' is 'x'");
}

TEST(refuses_bad_layer_types)
{
    struct buffer json;
    refuse("{\"head_dim\":64,\"rope_parameters\":{\"a/b\":{\"rope_type\":"
           "\"default\"}}}",
           "layer type 'a/b'");
    refuse("{\"head_dim\":64,\"rope_parameters\":{\"\":{\"rope_type\":"
           "\"default\"}}}",
           "expected at most 63");
    refuse("{\"head_dim\":64,\"rope_theta\":10,\"rope_parameters\":{\"ok\":{},"
           "\"bad\":{\"rope_type\":\"?\"}}}",
           "'rope_type' is '?', expected");
    buffer_init(&json);
    buffer_text(&json, "{\"head_dim\":64,\"rope_parameters\":{");
    for (int i = 0; i <= ANGLES_JSON_MAX_SETS; i++)
        buffer_printf(&json, "%s\"l%d\":{\"rope_theta\":10}", i ? "," : "", i);
    buffer_text(&json, "}}");
    refuse(json.text, "config: over 8 layer types");
    buffer_fini(&json);
}

/* Gemma 4: heads of full layers are twice as wide, in either spelling. */
TEST(layers_of_a_type_have_their_own_heads)
{
    static const char *const wide[] = {
        "\"global_head_dim\":512",
        "\"num_hidden_layers\":4,\"layer_types\":[\"sliding_attention\","
        "\"full_attention\",\"sliding_attention\",\"full_attention\"],"
        "\"per_layer_config\":{\"01\":{\"head_dim\":512},\"03\":{"
        "\"head_dim\":512}}"};
    static const char rest[] =
        "{\"model_type\":\"gemma4_text\",\"head_dim\":256,"
        "\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":"
        "0.25,\"rope_theta\":1e6,\"rope_type\":\"proportional\"},"
        "\"sliding_attention\":{\"rope_theta\":1e4,\"rope_type\":"
        "\"default\"}},";
    for (int i = 0; i < 2; i++) {
        struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
        char json[1024];
        snprintf(json, sizeof json, "%s%s}", rest, wide[i]);
        int n = read_sets("g", json, sets);
        CHECK_INT(n, 2);
        CHECK_INT(sets[0].set.head_dim, 512);
        CHECK_INT(sets[0].set.rotary_dim, 128);
        CHECK_INT(sets[1].set.head_dim, 256);
        CHECK_INT(sets[1].set.rotary_dim, 256);
        free_sets(sets, n);
    }
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,\"num_hidden_layers\":2,"
           "\"per_layer_config\":{\"01\":{\"head_dim\":128}}}",
           "'per_layer_config' has head width 128 for layer 1, expected 64");
}

/* A share is one of the whole head, of which the rotary part is that share. */
TEST(a_rotary_part_is_not_divided_again)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("m",
                      "{\"head_dim\":128,\"qk_rope_head_dim\":64,"
                      "\"rope_parameters\":{\"rope_theta\":1e4,"
                      "\"partial_rotary_factor\":0.5}}",
                      sets);
    CHECK_INT(sets[0].set.head_dim, 64);
    CHECK_INT(sets[0].set.rotary_dim, 64);
    free_sets(sets, n);
    refuse("{\"head_dim\":128,\"qk_rope_head_dim\":64,\"rope_theta\":1e4,"
           "\"partial_rotary_factor\":0.25}",
           "'qk_rope_head_dim' is 64, expected 32");
}

TEST(heads_have_other_names)
{
    static const struct {
        const char *json;
        int head_dim, rotary_dim;
    } cases[] = {
        {"{\"kv_channels\":128,\"hidden_size\":2048,"
         "\"num_attention_heads\":32,\"rope_theta\":1e4}",
         128, 128},
        {"{\"attention_head_dim\":160,\"kv_channels\":80,\"rope_theta\":1e4}",
         160, 160},
        {"{\"model_type\":\"minimax_m2\",\"head_dim\":128,\"rotary_dim\":64,"
         "\"rope_theta\":5e6}",
         128, 64},
        {"{\"model_type\":\"gemma2\",\"hidden_size\":2304,"
         "\"num_attention_heads\":8,\"rope_theta\":1e4}",
         256, 256},
        {"{\"model_type\":\"gemma2\",\"head_dim\":null,\"hidden_size\":2304,"
         "\"num_attention_heads\":8,\"rope_theta\":1e4}",
         288, 288}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
        int n = read_sets("t", cases[i].json, sets);
        CHECK_INT(sets[0].set.head_dim, cases[i].head_dim);
        CHECK_INT(sets[0].set.rotary_dim, cases[i].rotary_dim);
        free_sets(sets, n);
    }
    refuse("{\"head_dim\":128,\"rotary_dim\":64,\"rope_theta\":1e4}",
           "'rotary_dim' is 64, expected 128");
}

/* gemma-3-12b-it as first published says no more of its text model. */
TEST(a_base_is_given_or_its_models)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("g",
                      "{\"model_type\":\"gemma3\",\"text_config\":{"
                      "\"model_type\":\"gemma3_text\",\"hidden_size\":3840,"
                      "\"num_attention_heads\":16,\"rope_scaling\":{"
                      "\"factor\":8.0,\"rope_type\":\"linear\"}}}",
                      sets);
    CHECK_INT(n, 2);
    CHECK_DOUBLE(sets[0].set.params.theta, 1e6, 0);
    CHECK_INT(sets[0].set.params.scaling, ROPED_SCALING_LINEAR);
    CHECK_DOUBLE(sets[1].set.params.theta, 1e4, 0);
    CHECK_INT(sets[1].set.head_dim, 256);
    free_sets(sets, n);
    n = read_sets("l",
                  "{\"model_type\":\"llama\",\"hidden_size\":4096,"
                  "\"num_attention_heads\":32,\"rope_scaling\":null}",
                  sets);
    CHECK_DOUBLE(sets[0].set.params.theta, 1e4, 0);
    free_sets(sets, n);
    refuse("{\"model_type\":\"qwen3_next\",\"hidden_size\":768,"
           "\"num_attention_heads\":12}",
           "missing 'rope_theta': model_type 'qwen3_next' has no default");
    refuse("{\"model_type\":\"voxtral\",\"text_config\":{\"model_type\":"
           "\"llama\",\"hidden_size\":64,\"num_attention_heads\":2}}",
           "missing 'rope_theta'");
}

TEST(sections_lie_as_the_model_has_them)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("q",
                      "{\"model_type\":\"qwen3_vl_text\",\"head_dim\":128,"
                      "\"rope_parameters\":{\"rope_theta\":1e4,"
                      "\"mrope_section\":[24,20,20]}}",
                      sets);
    CHECK_INT(sets[0].set.params.mrope_interleaved, 1);
    free_sets(sets, n);
    refuse("{\"head_dim\":128,\"rope_parameters\":{"
           "\"rope_theta\":1e4,\"mrope_section\":[24,20,20]}}",
           "'mrope_section' without 'mrope_interleaved'");
}

#define IMAGES(model, widths)                                                  \
    "{\"model_type\":\"" model "\",\"patch_size\":14," widths                  \
    ",\"rope_parameters\":{\"rope_type\":\"axial\",\"rope_theta\":1e4}}"

TEST(images_have_axes)
{
    static const struct {
        const char *json;
        int scaling, axes[3], has_turns;
        int64_t n_axes, each, head_dim, rotary_dim;
    } cases[] = {
        {IMAGES("qwen2_vl_vision", "\"embed_dim\":1280,\"hidden_size\":3584,"
                                   "\"num_heads\":16"),
         ROPED_SCALING_AXIAL,
         {0, 1},
         0,
         2,
         20,
         80,
         80},
        {IMAGES("kimi_k25_vision", "\"hidden_size\":1152,"
                                   "\"num_attention_heads\":16"),
         ROPED_SCALING_AXIAL,
         {1, 0},
         1,
         2,
         18,
         72,
         72},
        {IMAGES("pixtral", "\"head_dim\":64"),
         ROPED_SCALING_AXIAL_DEALT,
         {0, 1},
         0,
         2,
         16,
         64,
         64},
        {IMAGES("minimax_m3_vl_vision", "\"head_dim\":80"),
         ROPED_SCALING_AXIAL,
         {0, 1, 2},
         0,
         3,
         13,
         80,
         78}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
        int n = read_sets("image", cases[i].json, sets);
        const struct roped_angle_params *params = &sets[0].set.params;
        CHECK_INT(n, 1);
        CHECK_INT(params->scaling, cases[i].scaling);
        CHECK_INT(params->mrope_interleaved, cases[i].has_turns);
        CHECK_INT(params->mrope_axes.count, cases[i].n_axes);
        CHECK_INT(params->mrope_section.count, cases[i].n_axes);
        for (int a = 0; a < cases[i].n_axes; a++) {
            CHECK_INT(params->mrope_axes.value[a], cases[i].axes[a]);
            CHECK_INT(params->mrope_section.value[a], cases[i].each);
        }
        CHECK_INT(sets[0].set.head_dim, cases[i].head_dim);
        CHECK_INT(sets[0].set.rotary_dim, cases[i].rotary_dim);
        free_sets(sets, n);
    }
    refuse(IMAGES("gemma4_vision", "\"head_dim\":64"),
           "'rope_type' is \"axial\", expected another: how model_type "
           "'gemma4_vision'");
}

#define OF_TYPE(type)                                                          \
    "{\"head_dim\":64,\"rope_scaling\":{\"rope_type\":\"" type "\"}}"

TEST(types_of_vllm_are_theirs_or_refused_with_a_reason)
{
    refuse(OF_TYPE("mllama4"), "scaling axial, two equal sections");
    refuse(OF_TYPE("openpangu"), "send cos and sin");
    refuse(OF_TYPE("bailing_mrope"), "send cos and sin");
    refuse(OF_TYPE("xdrope"), "expected dynamic with alpha");
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("v",
                      "{\"head_dim\":64,\"rope_theta\":1e4,\"rope_scaling\":{"
                      "\"rope_type\":\"deepseek_llama_scaling\",\"factor\":40,"
                      "\"apply_yarn_scaling\":true,"
                      "\"original_max_position_embeddings\":4096}}",
                      sets);
    CHECK_INT(sets[0].set.params.scaling, ROPED_SCALING_DEEPSEEK_YARN);
    free_sets(sets, n);
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,\"rope_scaling\":{"
           "\"rope_type\":\"yarn\",\"factor\":4,\"apply_yarn_scaling\":false,"
           "\"original_max_position_embeddings\":4096}}",
           "'apply_yarn_scaling' is false, expected true");
}

TEST(unknown_keys_are_refused)
{
    static const struct {
        const char *key, *why;
    } inside[] = {
        {"\"factr\":2", "unknown key 'factr' of the rope parameters; did you "
                        "mean 'factor'?"},
        {"\"rope_dim\":32", "'rope_dim' is 32, expected none"},
        {"\"use_fope\":true", "'use_fope' is true, expected none"},
        {"\"xdrope_section\":[1]", "'xdrope_section' is an array"},
        {"\"max_trained_positions\":4096", "'max_trained_positions' is 4096"}};
    static const struct {
        const char *key, *why;
    } beside[] = {
        {"\"rope_thetta\":1", "unknown key 'rope_thetta' of the configuration; "
                              "did you mean 'rope_theta'?"},
        {"\"new_rope_thing\":1", "unknown key 'new_rope_thing'"},
        {"\"layer_rope_theta\":[1e4,0,5e5]", "'layer_rope_theta' is an array"},
        {"\"compress_rope_theta\":16e4", "'compress_rope_theta' is 160000"},
        {"\"rope_scaling_layers\":[1]", "'rope_scaling_layers' is an array"},
        {"\"patch_size\":14", "'patch_size' is 14, expected none"},
        {"\"rope_ratio\":50", "'rope_ratio' is 50, expected none"}};
    char json[256];
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        snprintf(json, sizeof json,
                 "{\"head_dim\":64,\"rope_theta\":1e4,\"rope_scaling\":{%s}}",
                 inside[i].key);
        refuse(json, inside[i].why);
        snprintf(json, sizeof json,
                 "{\"head_dim\":64,\"rope_theta\":1e4,\"rope_parameters\":{"
                 "\"full_attention\":{%s}}}",
                 inside[i].key);
        refuse(json, inside[i].why);
    }
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        snprintf(json, sizeof json,
                 "{\"head_dim\":64,\"rope_theta\":1e4,\"rope_scaling\":{"
                 "\"type\":\"linear\",\"factor\":2},%s}",
                 beside[i].key);
        refuse(json, beside[i].why);
    }
}

TEST(keys_that_change_no_angle_are_skipped)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("t",
                      "{\"head_dim\":64,\"rope_theta\":1e4,"
                      "\"rope_interleave\":true,\"no_rope_layers\":[1,0],"
                      "\"layer_rope_theta\":[1e4,0],\"properties\":3,"
                      "\"rope_ratio\":1,\"rope_new\":null,\"rope_parameters\":"
                      "{\"llama_4_scaling_beta\":0.1,\"use_fope\":false,"
                      "\"attn_factor\":1}}",
                      sets);
    CHECK_INT(n, 1);
    CHECK_INT(sets[0].set.style, 1);
    free_sets(sets, n);
}

TEST(two_places_that_differ_are_refused)
{
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,\"rope_parameters\":{"
           "\"rope_type\":\"default\"},\"rope_scaling\":{\"type\":\"linear\","
           "\"factor\":2}}",
           "'rope_parameters' and 'rope_scaling' are both given and differ");
    refuse("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
           "\"text_config\":{\"head_dim\":64,\"rope_theta\":1e4}}",
           "'rope_scaling' stands beside 'text_config', expected in it");
    refuse("{\"head_dim\":64,\"rope_theta\":1e4,"
           "\"original_max_position_embeddings\":4096,\"rope_scaling\":{"
           "\"type\":\"yarn\",\"factor\":2,"
           "\"original_max_position_embeddings\":2048}}",
           "'original_max_position_embeddings' is 2048 in the rope parameters, "
           "expected 4096");
}
