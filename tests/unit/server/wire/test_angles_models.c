/*
 * test_angles_models.c - what a table knows of its model that the config.json
 * does not say: which elements of a head pair, and what the model's class takes
 * where the file is silent.
 */
#include "unit/server/wire/angle_sets.h"

#include <stdio.h>

/* ERNIE-4.5-VL-28B-A3B: height and width in turns, then time. */
TEST(sections_that_a_file_does_not_state_are_the_models)
{
    static const char *const said[] = {
        "", ",\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[22,"
            "22,20]}"};
    for (int i = 0; i < 2; i++) {
        struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
        char json[256];
        snprintf(
            json, sizeof json,
            "{\"model_type\":\"ernie4_5_vl_moe_text\",\"hidden_size\":2560,"
            "\"num_attention_heads\":20,\"rope_theta\":500000%s}",
            said[i]);
        int n = read_sets("e", json, sets);
        const struct roped_angle_params *params = &sets[0].set.params;
        CHECK_INT(params->mrope_section.count, 3);
        CHECK_INT(params->mrope_section.value[1], 22);
        CHECK_INT(params->mrope_section.value[2], 20);
        CHECK_INT(params->mrope_turns, 2);
        CHECK_INT(params->mrope_axes.count, 3);
        CHECK_INT(params->mrope_axes.value[0], 1);
        CHECK_INT(params->mrope_axes.value[1], 2);
        CHECK_INT(params->mrope_axes.value[2], 0);
        CHECK_INT(sets[0].set.style, 1);
        free_sets(sets, n);
    }
}

/* A share, and a rotary part's width, that files of some models leave out. */
TEST(widths_that_a_file_does_not_state_are_the_models)
{
    static const struct {
        const char *json;
        int head_dim, rotary_dim;
    } cases[] = {
        {"{\"model_type\":\"glm4\",\"rope_theta\":1e4}", 128, 64},
        {"{\"model_type\":\"phi\",\"head_dim\":64,\"rope_theta\":1e4}", 64, 32},
        {"{\"model_type\":\"gpt_neox\",\"head_dim\":96,\"rope_theta\":1e4}", 96,
         24},
        {"{\"model_type\":\"glm4_moe_lite\",\"hidden_size\":2048,"
         "\"num_attention_heads\":20,\"rope_theta\":1e4}",
         64, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
        int n = read_sets("t", cases[i].json, sets);
        CHECK_INT(sets[0].set.head_dim, cases[i].head_dim);
        CHECK_INT(sets[0].set.rotary_dim, cases[i].rotary_dim);
        free_sets(sets, n);
    }
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n = read_sets("g",
                      "{\"model_type\":\"gemma3_text\",\"rope_parameters\":{"
                      "\"full_attention\":{\"rope_type\":\"default\"},"
                      "\"sliding_attention\":{\"rope_type\":\"default\"}}}",
                      sets);
    CHECK_DOUBLE(sets[0].set.params.theta, 1e6, 0);
    CHECK_DOUBLE(sets[1].set.params.theta, 1e4, 0);
    free_sets(sets, n);
}

/* Every model that has a row, as tests/interop/test_pairs.py finds it. */
static const struct {
    const char *pairs, *types;
} paired[] = {
    {"gptj", "axk1 axk2 bailing_hybrid blt blt_global_transformer "
             "blt_local_decoder blt_local_encoder blt_patcher codegen cohere "
             "cohere2 cohere2_moe deepseek_v2 deepseek_v3 deepseek_v32 "
             "deepseek_v4 dots3_note_text ernie4_5 ernie4_5_moe "
             "ernie4_5_vl_moe_text glm glm4 glm4_moe_lite glm4v_text "
             "glm_moe_dsa glm_ocr_text gptj helium inkling2_vision "
             "llama4_text longcat_flash mistral4 mistral_large4_text "
             "moonshine moonshine_streaming openai_privacy_filter "
             "pe_audio_encoder pe_audio_video_encoder pe_video_encoder "
             "sam3_vit_model youtu"},
    {"neox", "afmoe apertus arcee aria_text bamba beam bitnet chameleon "
             "cohere_compass_text cohere_compass_vision cosmos3_edge_text "
             "csm csm_depth_decoder_model cwm dbrx deepseek_ocr2_encoder "
             "deepseek_ocr2_text dia_decoder dia_encoder diffllama "
             "diffusion_gemma_text doge dots1 dots3_note_audio_encoder "
             "dots3_note_vision_encoder embedding_gemma2_text "
             "emu3_text_model ernie4_5_vl_moe_vision esm esmc eurobert "
             "evolla exaone4 exaone4_5_vision exaone_moe falcon falcon_h1 "
             "flex_olmo flint gemma gemma2 gemma3 gemma3_text gemma3n_text "
             "gemma4_text gemma4_unified_text gemma4_vision glm4_moe "
             "glm4v_moe_text glm4v_moe_vision glm4v_vision glm5_next_vision "
             "glm_image_text glm_ocr_vision glmasr_encoder gpt_neox "
             "gpt_neox_japanese gpt_oss gradium_phonon_tts granite "
             "granite4_vision_text granite_docling_text granite_swa "
             "granitemoe granitemoe_swa granitemoehybrid granitemoeshared "
             "gte higgs_audio_v2 hrm_text hunyuan_v1_dense hunyuan_v1_moe "
             "hunyuan_vl_text hy_v3 hy_v4 hyperclovax idefics internlm3 "
             "iquestcoder jais2 jetmoe jina_embeddings_v3 kimi_k25_vision "
             "kolibri1 kyutai_speech_to_text laguna lasr_encoder lfm2 "
             "lfm2_moe lfm3 lfm3_vl_vision llama mellum mimi mimi_decoder "
             "mimi_encoder mimo_v2_flash minicpm3 minimax minimax_m2 "
             "minimax_m3_vl_text minimax_m3_vl_vision ministral ministral3 "
             "mistral mixtral mlcd_vision_model mllama_text_model modernbert "
             "modernbert-decoder molmo2_text moshi muse_glimmer_assistant "
             "muse_glimmer_text muse_glimmer_vision muse_spark_text "
             "muse_spark_vision nemotron nemotron3_5_transcribe_asr_audio "
             "nemotron3_5_transcribe_word_timestamp "
             "nemotron3_diarization_audio neomme neucodec nomic_bert olmo "
             "olmo2 olmo3 olmo_hybrid olmoe paddleocr_vl_text "
             "paddleocr_vl_vision persimmon phi phi3 phi4_multimodal phimoe "
             "pixtral pocket_tts pocket_tts_audio_tokenizer "
             "pocket_tts_audio_tokenizer_decoder "
             "pocket_tts_audio_tokenizer_encoder qwen2 qwen2_5_omni_dit "
             "qwen2_5_omni_talker qwen2_5_omni_text "
             "qwen2_5_omni_vision_encoder qwen2_5_vl qwen2_5_vl_text "
             "qwen2_5_vl_vision qwen2_moe qwen2_vl qwen2_vl_text "
             "qwen2_vl_vision qwen3 qwen3_5_moe_text qwen3_5_moe_vision "
             "qwen3_5_text qwen3_5_vision qwen3_moe qwen3_next "
             "qwen3_omni_moe_talker_code_predictor "
             "qwen3_omni_moe_talker_text qwen3_omni_moe_text"},
    {"neox", "qwen3_omni_moe_vision_encoder qwen3_vl_moe_text "
             "qwen3_vl_moe_vision qwen3_vl_text qwen3_vl_vision "
             "qwen4_exp_text qwen4_exp_vision recurrent_gemma seed_oss "
             "smollm3 solar_open stablelm starcoder2 step3p5 step3p5_vision "
             "t5_gemma_module t5gemma2_decoder t5gemma2_text timesfm2_5 "
             "ultrabert unlimited_ocr_text vaultgemma video_llama_3_vision "
             "voxtral voxtral_realtime voxtral_realtime_encoder "
             "voxtral_realtime_text xcodec2 zamba2 zaya"},
};

/* The style of the table of a model_type with these members beside it, given a
 * style or none; -1: refused, and err says why. */
static int style_of(const char *type, const char *members, const char *given,
                    struct roped_error *err)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    char json[512];
    int n;
    snprintf(
        json, sizeof json,
        "{%s%s%s\"head_dim\":128,\"hidden_size\":256,\"rope_theta\":1e4%s}",
        type ? "\"model_type\":\"" : "", type ? type : "", type ? "\"," : "",
        members);
    if (angles_json_read("t", given, json, strlen(json), sets, &n, err))
        return -1;
    int style = sets[0].set.style;
    free_sets(sets, n);
    return style;
}

TEST(a_table_has_the_pairs_of_its_model)
{
    struct roped_error err;
    for (size_t i = 0; i < sizeof paired / sizeof *paired; i++) {
        const char *at = paired[i].types;
        char type[64];
        for (int n; sscanf(at, "%63s%n", type, &n) == 1; at += n) {
            int found = style_of(type, "", NULL, &err);
            int expected = strcmp(paired[i].pairs, "gptj") == 0;
            if (found != expected)
                CHECK_FAIL("%s: style %d, expected %s (%s)", type, found,
                           paired[i].pairs, found < 0 ? err.text : "");
        }
    }
}

TEST(interleave_is_honoured_with_the_default_of_its_class)
{
    struct roped_error err;
    const char *const type = "deepseek_v3";
    CHECK_INT(style_of(type, "", NULL, &err), 1);
    CHECK_INT(style_of(type, ",\"rope_interleave\":true", NULL, &err), 1);
    CHECK_INT(style_of(type, ",\"rope_interleave\":false", NULL, &err), 0);
    CHECK_INT(style_of(type, ",\"rope_interleave\":null", NULL, &err), 0);
    CHECK_INT(style_of(type, ",\"rope_interleave\":1", NULL, &err), -1);
    CHECK_CONTAINS(err.text, "'rope_interleave' is 1, expected true or false");
    CHECK_INT(style_of("llama", ",\"rope_interleave\":true", NULL, &err), 0);
    CHECK_INT(style_of("glm", ",\"rope_interleave\":false", NULL, &err), 1);
    CHECK_INT(style_of(NULL, "", NULL, &err), 0);
    CHECK_INT(style_of(NULL, ",\"rope_interleave\":true", NULL, &err), 1);
}

TEST(what_the_request_says_of_pairs_is_obeyed)
{
    struct roped_error err;
    CHECK_INT(style_of("llama", "", "gptj", &err), 1);
    CHECK_INT(style_of("glm", "", "neox", &err), 0);
    CHECK_INT(style_of("deepseek_v3", "", "neox", &err), 0);
    CHECK_INT(style_of("llama", ",\"style\":\"gptj\"", NULL, &err), 1);
    CHECK_INT(style_of("llama", ",\"style\":\"gptj\"", "neox", &err), -1);
    CHECK_CONTAINS(err.text, "parameter 'style' is given twice");
    CHECK_INT(style_of("llama", "", "half", &err), -1);
    CHECK_CONTAINS(err.text, "parameter 'style': 'half', expected");
    CHECK_INT(style_of("llama", ",\"style\":2", NULL, &err), -1);
    CHECK_CONTAINS(err.text, "parameter 'style': 2, expected neox or gptj");
}

TEST(a_model_that_is_not_known_is_not_guessed)
{
    struct roped_error err;
    CHECK_INT(style_of("chatglm", "", NULL, &err), -1);
    CHECK_TEXT(err.text,
               "config: model_type 'chatglm' is not known, nor which elements "
               "of its heads pair, expected parameter 'style' to say it: neox "
               "or gptj");
    CHECK_INT(style_of("chatglm", "", "gptj", &err), 1);
    CHECK_INT(style_of("", "", NULL, &err), 0);
    CHECK_INT(style_of("nanochat", "", NULL, &err), -1);
    CHECK_CONTAINS(err.text,
                   "'model_type' is 'nanochat', which rotates backwards");
    /* a text model that does not say what it is, is its file's */
    CHECK_INT(style_of("glm",
                       ",\"text_config\":{\"head_dim\":64,"
                       "\"rope_theta\":1e4}",
                       NULL, &err),
              1);
    refuse("{\"model_type\":\"chatglm\",\"text_config\":{\"head_dim\":64,"
           "\"rope_theta\":1e4}}",
           "model_type 'chatglm' is not known");
    refuse("{\"model_type\":\"llava\",\"text_config\":{\"model_type\":"
           "\"chatglm\",\"head_dim\":64,\"rope_theta\":1e4}}",
           "model_type 'chatglm' is not known");
}
