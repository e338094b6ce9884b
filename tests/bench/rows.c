/*
 * rows.c - the rows of bench_ops and how each becomes a call.
 */
#include "bench/rows.h"

#include "kernel/random.h"
#include "kernel/rotary_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F32  ROPED_F32
#define F16  ROPED_F16
#define BF16 ROPED_BF16

/* clang-format off */
const struct bench_row bench_rows[] = {
    {"rope bf16 4 tokens, 32+8 heads x 128",      "rope", BF16, 4,      32, 8, 128, 0, false, BENCH_TABLE, 0.92},
    {"rope bf16 128 tokens",                      "rope", BF16, 128,    32, 8, 128, 0, false, BENCH_TABLE, 0.90},
    {"rope bf16 2048 tokens",                     "rope", BF16, 2048,   32, 8, 128, 0, false, BENCH_TABLE, 0.97},
    {"rope bf16 131072 tokens neox",              "rope", BF16, 131072, 32, 8, 128, 0, false, BENCH_TABLE, 0.98},
    {"rope bf16 131072 tokens gptj",              "rope", BF16, 131072, 32, 8, 128, 0, true,  BENCH_TABLE, 0.98},
    {"rope bf16 4 tokens, no table",              "rope", BF16, 4,      32, 8, 128, 0, false, BENCH_COMPUTE, 0.90},
    {"rope bf16 2048 tokens, no table",           "rope", BF16, 2048,   32, 8, 128, 0, false, BENCH_COMPUTE, 0.97},
    {"rope bf16 131072 tokens, no table",         "rope", BF16, 131072, 32, 8, 128, 0, false, BENCH_COMPUTE, 0},
    {"rope f16 2048 tokens gptj",                 "rope", F16,  2048,   32, 8, 128, 0, true,  BENCH_TABLE, 0},
    {"rope f16 131072 tokens",                    "rope", F16,  131072, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope f32 2048 tokens",                      "rope", F32,  2048,   32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope f32 128x8192x128, implicit positions", "rope", F32,  1048576, 1, 0, 128, 8192, false, BENCH_COMPUTE, 1.00},
    {"rope f32 gptj 4096x512, one head",          "rope", F32,  4096,   1,  0, 512, 4096, true, BENCH_COMPUTE, 0.95},
    {"rope f32 gptj 8192x1024, one head",         "rope", F32,  8192,   1,  0, 1024, 8192, true, BENCH_COMPUTE, 0.97},
    {"rope bf16 4 tokens of fused rows",          "rope", BF16, 4,      32, 8, 128, 0, false, BENCH_TABLE, 0, .of = 6144},
    {"rope bf16 2048 tokens of fused rows",       "rope", BF16, 2048,   32, 8, 128, 0, false, BENCH_TABLE, 0, .of = 6144},
    {"rope_quantize e4m3 MLA 1 token",            "rope_quantize", BF16, 1,     128, 0, 64, 512, true, BENCH_TABLE, 0.90},
    {"rope_quantize e4m3 MLA 128 tokens",         "rope_quantize", BF16, 128,   128, 0, 64, 512, true, BENCH_TABLE, 0.97},
    {"rope_quantize e4m3 MLA 8192 tokens",        "rope_quantize", BF16, 8192,  128, 0, 64, 512, true, BENCH_TABLE, 0.97},
    {"rope_quantize e4m3 GQA 8192 tokens",        "rope_quantize", BF16, 8192,  32, 8, 64, 64, true, BENCH_TABLE, 0.95},
    {"rope_quantize e4m3 GQA 65536 tokens",       "rope_quantize", BF16, 65536, 32, 8, 64, 64, true, BENCH_TABLE, 0.97},
    {"rope_quantize e4m3 GQA 8192 tokens neox",   "rope_quantize", BF16, 8192,  32, 8, 64, 64, false, BENCH_TABLE, 0},
    {"rope_quantize f16 e4m3 GQA 65536 tokens",   "rope_quantize", F16, 65536, 32, 8, 64, 64, true, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope bf16 1 token, 32+8 heads x 128", "qk_rmsnorm_rope", BF16, 1, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope bf16 4 tokens",             "qk_rmsnorm_rope", BF16, 4,     32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope bf16 128 tokens",           "qk_rmsnorm_rope", BF16, 128,   32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope bf16 2048 tokens",          "qk_rmsnorm_rope", BF16, 2048,  32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope bf16 65536 tokens",         "qk_rmsnorm_rope", BF16, 65536, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope bf16 65536 tokens gptj",    "qk_rmsnorm_rope", BF16, 65536, 32, 8, 128, 0, true,  BENCH_TABLE, 0},
    {"qk_rmsnorm_rope bf16 8192 tokens, 8+4 heads x 256, no table", "qk_rmsnorm_rope", BF16, 8192, 8, 4, 256, 0, false, BENCH_COMPUTE, 0},
    {"qk_rmsnorm_rope f32 8192 tokens",           "qk_rmsnorm_rope", F32,  8192,  32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope f16 65536 tokens",          "qk_rmsnorm_rope", F16,  65536, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 1 token, 32+8 heads x 128", "rope_append", BF16, 1,     32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 8 tokens",                 "rope_append", BF16, 8,     32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 32 tokens",                "rope_append", BF16, 32,    32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 128 tokens",               "rope_append", BF16, 128,   32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 2048 tokens",              "rope_append", BF16, 2048,  32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 65536 tokens",             "rope_append", BF16, 65536, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 65536 tokens gptj",        "rope_append", BF16, 65536, 32, 8, 128, 0, true,  BENCH_TABLE, 0},
    {"rope_append f32 8192 tokens, no table",     "rope_append", F32,  8192,  32, 8, 128, 0, false, BENCH_COMPUTE, 0},
    {"rope_append f16 65536 tokens",              "rope_append", F16,  65536, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_append bf16 e4m3 caches, 1 token", "rope_append", BF16, 1, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_append bf16 e4m3 caches, 8 tokens", "rope_append", BF16, 8, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_append bf16 e4m3 caches, 128 tokens", "rope_append", BF16, 128, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_append bf16 e4m3 caches, 8192 tokens", "rope_append", BF16, 8192, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_append bf16 e4m3 caches, 65536 tokens", "rope_append", BF16, 65536, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_append bf16 MLA 1 token", "rope_append", BF16, 1, 128, 0, 64, 512, true, BENCH_TABLE, 0},
    {"rope_append bf16 MLA 128 tokens", "rope_append", BF16, 128, 128, 0, 64, 512, true, BENCH_TABLE, 0},
    {"rope_append bf16 MLA 8192 tokens", "rope_append", BF16, 8192, 128, 0, 64, 512, true, BENCH_TABLE, 0},
    {"rope_append bf16 MLA e4m3 cache, 1 token", "rope_append", BF16, 1, 128, 0, 64, 512, true, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_append bf16 MLA e4m3 cache, 128 tokens", "rope_append", BF16, 128, 128, 0, 64, 512, true, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_append bf16 MLA e4m3 cache, 8192 tokens", "rope_append", BF16, 8192, 128, 0, 64, 512, true, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"qk_rmsnorm_rope_append bf16 1 token", "qk_rmsnorm_rope_append", BF16, 1, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope_append bf16 8 tokens", "qk_rmsnorm_rope_append", BF16, 8, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope_append bf16 128 tokens", "qk_rmsnorm_rope_append", BF16, 128, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope_append bf16 2048 tokens", "qk_rmsnorm_rope_append", BF16, 2048, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope_append bf16 65536 tokens", "qk_rmsnorm_rope_append", BF16, 65536, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 1 token", "qk_rmsnorm_rope_append", BF16, 1, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 8 tokens", "qk_rmsnorm_rope_append", BF16, 8, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 128 tokens", "qk_rmsnorm_rope_append", BF16, 128, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 8192 tokens", "qk_rmsnorm_rope_append", BF16, 8192, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 65536 tokens", "qk_rmsnorm_rope_append", BF16, 65536, 32, 8, 128, 0, false, BENCH_TABLE, 0, .param = {{"cache_dtype", "e4m3"}}},
    {"rope_quantize_append e4m3 MLA 1 token",     "rope_quantize_append", BF16, 1,     128, 0, 64, 512, true, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 MLA 32 tokens",   "rope_quantize_append", BF16, 32,    128, 0, 64, 512, true, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 MLA 128 tokens",  "rope_quantize_append", BF16, 128,   128, 0, 64, 512, true, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 MLA 8192 tokens", "rope_quantize_append", BF16, 8192,  128, 0, 64, 512, true, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 GQA 1 token",     "rope_quantize_append", BF16, 1,     32, 8, 64, 64, false, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 GQA 128 tokens",  "rope_quantize_append", BF16, 128,   32, 8, 64, 64, false, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 GQA 8192 tokens", "rope_quantize_append", BF16, 8192,  32, 8, 64, 64, false, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 GQA 65536 tokens", "rope_quantize_append", BF16, 65536, 32, 8, 64, 64, false, BENCH_TABLE, 0},
    {"rope_quantize_append e4m3 32+8 x 128, 8192 tokens", "rope_quantize_append", BF16, 8192, 32, 8, 128, 0, false, BENCH_TABLE, 0},
    {"rope_quantize_append f16 e4m3 GQA 65536 tokens", "rope_quantize_append", F16, 65536, 32, 8, 64, 64, false, BENCH_TABLE, 0},
    {"rmsnorm bf16 1x4096",      "rmsnorm", BF16, 1,      4096,  .goal = 0.85},
    {"rmsnorm bf16 64x4096",     "rmsnorm", BF16, 64,     4096,  .goal = 0.90},
    {"rmsnorm bf16 4096x4096",   "rmsnorm", BF16, 4096,   4096,  .goal = 0.96},
    {"rmsnorm bf16 65536x4096",  "rmsnorm", BF16, 65536,  4096,  .goal = 0.98},
    {"rmsnorm f16 4096x4096",    "rmsnorm", F16,  4096,   4096},
    {"rmsnorm f16 65536x4096",   "rmsnorm", F16,  65536,  4096},
    {"rmsnorm f32 1x4096",       "rmsnorm", F32,  1,      4096,  .goal = 0.85},
    {"rmsnorm f32 32768x4096",   "rmsnorm", F32,  32768,  4096,  .goal = 0.98},
    {"rmsnorm bf16 16384x16384", "rmsnorm", BF16, 16384,  16384, .goal = 0.97},
    {"rmsnorm bf16 262144x128",  "rmsnorm", BF16, 262144, 128,   .goal = 0.95},
    {"rmsnorm bf16 4096x512 of 576",    "rmsnorm", BF16, 4096,   512,  .of = 576},
    {"rmsnorm bf16 512x4096 of 6144",   "rmsnorm", BF16, 512,    4096, .of = 6144},
    {"rmsnorm bf16 16384x128 of 192",   "rmsnorm", BF16, 16384,  128,  .of = 192},
    {"rmsnorm_quantize bf16 e4m3 4096x512 of 576", "rmsnorm_quantize", BF16, 4096, 512, .of = 576, .param = {{"dequant_scale", "0.05"}}},
    {"add_rmsnorm bf16 1x4096",      "add_rmsnorm", BF16, 1,      4096},
    {"add_rmsnorm bf16 64x4096",     "add_rmsnorm", BF16, 64,     4096},
    {"add_rmsnorm bf16 4096x4096",   "add_rmsnorm", BF16, 4096,   4096},
    {"add_rmsnorm bf16 65536x4096",  "add_rmsnorm", BF16, 65536,  4096},
    {"add_rmsnorm f32 32768x4096",   "add_rmsnorm", F32,  32768,  4096},
    {"add_rmsnorm f16 65536x4096",   "add_rmsnorm", F16,  65536,  4096},
    {"add_rmsnorm bf16 16384x16384", "add_rmsnorm", BF16, 16384,  16384},
    {"add_rmsnorm bf16 1x4096 rounded as Hugging Face", "add_rmsnorm", BF16, 1, 4096, .param = {{"rounding", "hf"}, {"sum_rounding", "type"}}},
    {"add_rmsnorm bf16 65536x4096 rounded as Hugging Face", "add_rmsnorm", BF16, 65536, 4096, .param = {{"rounding", "hf"}, {"sum_rounding", "type"}}},
    {"layer_norm bf16 1x4096", "layer_norm", BF16, 1, 4096},
    {"layer_norm bf16 64x4096", "layer_norm", BF16, 64, 4096},
    {"layer_norm bf16 4096x4096", "layer_norm", BF16, 4096, 4096},
    {"layer_norm bf16 65536x4096", "layer_norm", BF16, 65536, 4096},
    {"layer_norm f16 65536x4096", "layer_norm", F16, 65536, 4096},
    {"layer_norm f32 32768x4096", "layer_norm", F32, 32768, 4096},
    {"layer_norm bf16 16384x16384", "layer_norm", BF16, 16384, 16384},
    {"layer_norm bf16 262144x768", "layer_norm", BF16, 262144, 768},
    {"add_layer_norm bf16 1x4096", "add_layer_norm", BF16, 1, 4096},
    {"add_layer_norm bf16 64x4096", "add_layer_norm", BF16, 64, 4096},
    {"add_layer_norm bf16 65536x4096", "add_layer_norm", BF16, 65536, 4096},
    {"add_layer_norm f32 32768x4096", "add_layer_norm", F32, 32768, 4096},
    {"rmsnorm_quantize bf16 e4m3 1x4096", "rmsnorm_quantize", BF16, 1, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"rmsnorm_quantize bf16 e4m3 64x4096", "rmsnorm_quantize", BF16, 64, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"rmsnorm_quantize bf16 e4m3 65536x4096", "rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"rmsnorm_quantize bf16 e4m3 16384x16384", "rmsnorm_quantize", BF16, 16384, 16384, .param = {{"dequant_scale", "0.05"}}},
    {"rmsnorm_quantize bf16 e4m3 dynamic 1x4096", "rmsnorm_quantize", BF16, 1, 4096, .param = {{"dynamic", "true"}}},
    {"rmsnorm_quantize bf16 e4m3 dynamic 64x4096", "rmsnorm_quantize", BF16, 64, 4096, .param = {{"dynamic", "true"}}},
    {"rmsnorm_quantize bf16 e4m3 dynamic 65536x4096", "rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dynamic", "true"}}},
    {"rmsnorm_quantize bf16 e4m3 dynamic 16384x16384", "rmsnorm_quantize", BF16, 16384, 16384, .param = {{"dynamic", "true"}}},
    {"rmsnorm_quantize bf16 e4m3 by 128 1x4096", "rmsnorm_quantize", BF16, 1, 4096, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"rmsnorm_quantize bf16 e4m3 by 128 64x4096", "rmsnorm_quantize", BF16, 64, 4096, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"rmsnorm_quantize bf16 e4m3 by 128 65536x4096", "rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"rmsnorm_quantize bf16 e4m3 by 128 16384x16384", "rmsnorm_quantize", BF16, 16384, 16384, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"rmsnorm_quantize f16 e4m3 65536x4096", "rmsnorm_quantize", F16, 65536, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"rmsnorm_quantize f16 e5m2 dynamic 65536x4096", "rmsnorm_quantize", F16, 65536, 4096, .param = {{"dynamic", "true"}, {"output_dtype", "e5m2"}}},
    {"rmsnorm_quantize bf16 e4m3 by 32 65536x4096", "rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dynamic", "true"}, {"group_size", "32"}}},
    {"rmsnorm_quantize bf16 e4m3 by 16 65536x4096", "rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dynamic", "true"}, {"group_size", "16"}}},
    {"rmsnorm_quantize bf16 e4m3 dynamic 65536x4096 rounded as vLLM", "rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dynamic", "true"}, {"rounding", "type"}}},
    {"add_rmsnorm_quantize bf16 e4m3 1x4096", "add_rmsnorm_quantize", BF16, 1, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"add_rmsnorm_quantize bf16 e4m3 64x4096", "add_rmsnorm_quantize", BF16, 64, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"add_rmsnorm_quantize bf16 e4m3 65536x4096", "add_rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"add_rmsnorm_quantize bf16 e4m3 16384x16384", "add_rmsnorm_quantize", BF16, 16384, 16384, .param = {{"dequant_scale", "0.05"}}},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 1x4096", "add_rmsnorm_quantize", BF16, 1, 4096, .param = {{"dynamic", "true"}}},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 64x4096", "add_rmsnorm_quantize", BF16, 64, 4096, .param = {{"dynamic", "true"}}},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 65536x4096", "add_rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dynamic", "true"}}},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 16384x16384", "add_rmsnorm_quantize", BF16, 16384, 16384, .param = {{"dynamic", "true"}}},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 1x4096", "add_rmsnorm_quantize", BF16, 1, 4096, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 64x4096", "add_rmsnorm_quantize", BF16, 64, 4096, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 65536x4096", "add_rmsnorm_quantize", BF16, 65536, 4096, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 16384x16384", "add_rmsnorm_quantize", BF16, 16384, 16384, .param = {{"dynamic", "true"}, {"group_size", "128"}}},
    {"add_rmsnorm_quantize f16 e4m3 dynamic 65536x4096", "add_rmsnorm_quantize", F16, 65536, 4096, .param = {{"dynamic", "true"}}},
    {"add_rmsnorm_quantize f32 e4m3 32768x4096", "add_rmsnorm_quantize", F32, 32768, 4096, .param = {{"dequant_scale", "0.05"}}},
    {"mul backward f32 16x1024x4096",              "binary_backward", F32,  16, 1024, 4096, 0, .goal = 1.05},
    {"mul backward f32 16x1024x4096, b 1x1x4096",  "binary_backward", F32,  16, 1024, 4096, BENCH_OUTER + BENCH_MIDDLE, .goal = 0.97},
    {"mul backward f32 16x1024x4096, b 16x1024x1", "binary_backward", F32,  16, 1024, 4096, BENCH_INNER, .goal = 0.98},
    {"mul backward f32 16x1024x4096, b 1x1024x1",  "binary_backward", F32,  16, 1024, 4096, BENCH_OUTER + BENCH_INNER, .goal = 0.98},
    {"mul backward f32 16x1024x4096, b scalar",    "binary_backward", F32,  16, 1024, 4096, BENCH_ALL, .goal = 0.98},
    {"mul backward bf16 16x1024x4096",             "binary_backward", BF16, 16, 1024, 4096, 0},
    {"mul backward bf16 16x1024x4096, b 1x1x4096", "binary_backward", BF16, 16, 1024, 4096, BENCH_OUTER + BENCH_MIDDLE},
    {"mul backward bf16 16x1024x4096, b 16x1024x1","binary_backward", BF16, 16, 1024, 4096, BENCH_INNER},
    {"mul backward bf16 16x1024x4096, b scalar",   "binary_backward", BF16, 16, 1024, 4096, BENCH_ALL},
    {"mul backward f16 16x1024x4096",              "binary_backward", F16,  16, 1024, 4096, 0},
    {"mul backward f16 16x1024x4096, b 1x1x4096",  "binary_backward", F16,  16, 1024, 4096, BENCH_OUTER + BENCH_MIDDLE},
    {"mul backward f32 1x64x4096, b 1x1x4096",     "binary_backward", F32,  1, 64, 4096, BENCH_OUTER + BENCH_MIDDLE},
    {"act_and_mul bf16 1x4096",      "act_and_mul", BF16, 1,     4096},
    {"act_and_mul bf16 1x14336",     "act_and_mul", BF16, 1,     14336},
    {"act_and_mul bf16 64x14336",    "act_and_mul", BF16, 64,    14336},
    {"act_and_mul bf16 16384x14336", "act_and_mul", BF16, 16384, 14336},
    {"act_and_mul f32 8192x14336",   "act_and_mul", F32,  8192,  14336},
    {"act_and_mul bf16 16384x14336 gelu", "act_and_mul", BF16, 16384, 14336, .param = {{"activation", "gelu"}}},
    {"act_and_mul bf16 16384x14336 gelu_tanh", "act_and_mul", BF16, 16384, 14336, .param = {{"activation", "gelu_tanh"}}},
    {"act_and_mul bf16 16384x2880 pairs", "act_and_mul", BF16, 16384, 2880, .param = {{"activation", "swiglu_oai"}, {"interleaved", "true"}}},
};
/* clang-format on */
const int bench_n_rows = sizeof bench_rows / sizeof *bench_rows;

static struct random_source source = {23};

/* Entries of a cache per entry that a call writes. */
enum { CACHE_SHARE = 2 };

/* Large tensors repeat a random block: drawing each value takes minutes. */
static void bind_values(struct roped_call *call, const char *name,
                        enum roped_dtype dtype, int rank, const int64_t *dims)
{
    struct roped_tensor tensor = {.dtype = dtype, .rank = rank};
    memcpy(tensor.dims, dims, (size_t)rank * sizeof *dims);
    size_t bytes = (size_t)roped_tensor_bytes(&tensor);
    unsigned char *memory = malloc(bytes);
    if (!memory)
        exit(EXIT_FAILURE);
    size_t block = bytes < (1u << 20) ? bytes : 1u << 20;
    struct roped_tensor head = {
        .dtype = dtype,
        .rank = 1,
        .data = memory,
        .dims = {(int64_t)(block / roped_dtype_bytes(dtype))}};
    random_fill(&source, &head, 1, false);
    for (size_t at = block; at < bytes; at += block)
        memcpy(memory + at, memory, bytes - at < block ? bytes - at : block);
    tensor.data = memory;
    case_bind(call, name, &tensor);
}

static void bind_positions(struct roped_call *call, int64_t n)
{
    struct roped_tensor positions = case_tensor(&source, ROPED_I64, 1, &n, 0);
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)positions.data)[i] = i % 8192;
    case_bind(call, "positions", &positions);
}

static void build_rope(struct roped_call *call, const struct bench_row *row)
{
    int64_t q[3] = {row->n, row->a, row->c}, k[3] = {row->n, row->b, row->c};
    if (row->d) { /* sequences of implicit positions */
        q[0] = row->n / row->d;
        q[1] = row->d;
        case_param(call, "layout", "bsd");
    }
    bind_values(call, "q", row->dtype, 3, q);
    if (row->b)
        bind_values(call, "k", row->dtype, 3, k);
    if (!row->d)
        bind_positions(call, row->n);
}

static void build_qk_rmsnorm_rope(struct roped_call *call,
                                  const struct bench_row *row)
{
    build_rope(call, row);
    bind_values(call, "q_weight", row->dtype, 1, &row->c);
    bind_values(call, "k_weight", row->dtype, 1, &row->c);
}

static void build_rope_quantize(struct roped_call *call,
                                const struct bench_row *row)
{
    int64_t q[3] = {row->n, row->a, row->c}, k[3] = {row->n, row->b, row->c};
    int rank = 3;
    if (row->b == 0) {
        k[1] = row->c;
        rank = 2;
    }
    bind_values(call, "q_rope", row->dtype, 3, q);
    bind_values(call, "k_rope", row->dtype, rank, k);
    q[2] = row->d;
    k[rank - 1] = row->d;
    if (row->d) {
        bind_values(call, "q_nope", row->dtype, 3, q);
        bind_values(call, "k_nope", row->dtype, rank, k);
    }
    bind_positions(call, row->n);
}

/* Places of n tokens in a cache of twice as many, in no order: an odd factor
 * permutes a power of two. */
static int64_t place_of(int64_t token, int64_t n)
{
    int64_t places = 1;
    while (places < n)
        places *= 2;
    return (token * 2654435761 & (places - 1)) % (CACHE_SHARE * n);
}

/* Codes of a cache: any will do, but not from uninitialised memory. */
static void bind_codes(struct roped_call *call, const char *name,
                       enum roped_dtype dtype, int rank, const int64_t *dims)
{
    struct roped_tensor cache = case_tensor(&source, dtype, rank, dims, 0);
    memset(cache.data, 0x3C, (size_t)roped_tensor_bytes(&cache));
    case_bind(call, name, &cache);
}

/* A cache of the type of q, or of codes where the row says which. */
static void bind_cache(struct roped_call *call, const struct bench_row *row,
                       const char *name, int rank, const int64_t *dims)
{
    if (row->param[0][0])
        bind_codes(call, name, ROPED_U8, rank, dims);
    else
        bind_values(call, name, row->dtype, rank, dims);
}

/* b 0: MLA, whose cells are d elements of v and c of k. */
static void build_rope_append(struct roped_call *call,
                              const struct bench_row *row)
{
    int64_t q[3] = {row->n, row->a, row->c}, dims[3] = {row->n, row->b, row->c};
    int64_t latent[2] = {row->n, row->d}, k[2] = {row->n, row->c};
    int64_t cells[2] = {CACHE_SHARE * row->n, row->c + row->d};
    struct roped_tensor slots = case_tensor(&source, ROPED_I64, 1, &row->n, 0);
    bind_values(call, "q", row->dtype, 3, q);
    bind_values(call, "k", row->dtype, row->b ? 3 : 2, row->b ? dims : k);
    bind_values(call, "v", row->dtype, row->b ? 3 : 2, row->b ? dims : latent);
    bind_positions(call, row->n);
    dims[0] = CACHE_SHARE * row->n;
    bind_cache(call, row, "k_cache", row->b ? 3 : 2, row->b ? dims : cells);
    if (row->b)
        bind_cache(call, row, "v_cache", 3, dims);
    for (int64_t i = 0; i < row->n; i++)
        ((int64_t *)slots.data)[i] = place_of(i, row->n);
    case_bind(call, "slots", &slots);
}

static int32_t *bind_ints(struct roped_call *call, const char *name, int64_t n)
{
    struct roped_tensor tensor = case_tensor(&source, ROPED_I32, 1, &n, 0);
    case_bind(call, name, &tensor);
    return tensor.data;
}

static void build_qk_rmsnorm_rope_append(struct roped_call *call,
                                         const struct bench_row *row)
{
    build_rope_append(call, row);
    bind_values(call, "q_weight", row->dtype, 1, &row->c);
    bind_values(call, "k_weight", row->dtype, 1, &row->c);
}

/* One request, whose pages of up to 16 entries are in no order. */
static void build_rope_quantize_append(struct roped_call *call,
                                       const struct bench_row *row)
{
    int64_t page_size = row->n < 16 ? row->n : 16, used = row->n / page_size;
    int64_t pages = CACHE_SHARE * used, width = row->c + row->d;
    int64_t gqa[4] = {pages, page_size, row->b, width};
    int64_t ckv[3] = {pages, page_size, row->d};
    int64_t kpe[3] = {pages, page_size, row->c};
    int64_t v[3] = {row->n, row->b, width};
    build_rope_quantize(call, row);
    if (row->b) {
        bind_values(call, "v", row->dtype, 3, v);
        bind_codes(call, "k_cache", ROPED_F8_E4M3, 4, gqa);
        bind_codes(call, "v_cache", ROPED_F8_E4M3, 4, gqa);
    } else {
        bind_codes(call, "ckv_cache", ROPED_F8_E4M3, 3, ckv);
        bind_codes(call, "kpe_cache", ROPED_F8_E4M3, 3, kpe);
    }
    int32_t *indices = bind_ints(call, "page_indices", used);
    int32_t *indptr = bind_ints(call, "page_indptr", 2);
    int32_t *requests = bind_ints(call, "batch_indices", row->n);
    int32_t *positions = bind_ints(call, "kv_positions", row->n);
    for (int64_t i = 0; i < used; i++)
        indices[i] = (int32_t)place_of(i, used);
    indptr[0] = 0;
    indptr[1] = (int32_t)used;
    for (int64_t i = 0; i < row->n; i++) {
        requests[i] = 0;
        positions[i] = (int32_t)i;
    }
}

/* An operator on rows: all of its inputs, rows and vectors as long as one. */
static void build_rows(struct roped_call *call, const struct bench_row *row)
{
    int64_t x[2] = {row->n, row->a};
    for (int i = 0; i < call->n_in; i++) {
        bool has_rows = call->op->in[i].flags & ROPED_STRIDED;
        bind_values(call, call->op->in[i].name, row->dtype, has_rows ? 2 : 1,
                    has_rows ? x : x + 1);
    }
}

/* Gate and up of rows of row->a each, in one tensor. */
static void build_act_and_mul(struct roped_call *call,
                              const struct bench_row *row)
{
    int64_t x[2] = {row->n, 2 * row->a};
    bind_values(call, "x", row->dtype, 2, x);
}

static void build_binary(struct roped_call *call, const struct bench_row *row)
{
    const struct bench_pair of_row = {3,
                                      {row->n, row->a, row->b},
                                      {row->c & BENCH_OUTER ? 1 : row->n,
                                       row->c & BENCH_MIDDLE ? 1 : row->a,
                                       row->c & BENCH_INNER ? 1 : row->b}};
    const struct bench_pair *pair = row->pair ? row->pair : &of_row;
    int64_t g[5];
    for (int i = 0; i < pair->rank; i++)
        g[i] = pair->a[i] == 1 ? pair->b[i] : pair->a[i];
    bind_values(call, "grad_output", row->dtype, pair->rank, g);
    bind_values(call, "a", row->dtype, pair->rank, pair->a);
    bind_values(call, "b", row->dtype, pair->rank, pair->b);
    if (!row->param[0][0])
        case_param(call, "function", "mul");
}

/* Operators that are not on rows, or not on whole ones. */
static const struct {
    const char *op;
    void (*build)(struct roped_call *call, const struct bench_row *row);
} builders[] = {{"rope", build_rope},
                {"rope_quantize", build_rope_quantize},
                {"qk_rmsnorm_rope", build_qk_rmsnorm_rope},
                {"rope_append", build_rope_append},
                {"qk_rmsnorm_rope_append", build_qk_rmsnorm_rope_append},
                {"rope_quantize_append", build_rope_quantize_append},
                {"binary_backward", build_binary},
                {"act_and_mul", build_act_and_mul}};

void bench_build(struct roped_call *call, const struct bench_row *row)
{
    struct roped_error err = {.text = ""};
    roped_call_init(call, roped_op_find(row->op));
    size_t i = 0, n = sizeof builders / sizeof *builders;
    while (i < n && strcmp(builders[i].op, row->op) != 0)
        i++;
    (i < n ? builders[i].build : build_rows)(call, row);
    if (row->is_gptj)
        case_param(call, "style", "gptj");
    if (row->angles == BENCH_COMPUTE)
        case_param(call, "angles", "compute");
    for (int j = 0; j < 2 && row->param[j][0]; j++)
        case_param(call, row->param[j][0], row->param[j][1]);
    if (roped_call_resolve(call, &err)) {
        fprintf(stderr, "%s: %s\n", row->name, err.text);
        exit(EXIT_FAILURE);
    }
}

int64_t bench_bytes(const struct roped_call *call)
{
    int64_t bytes = roped_call_bytes(call);
    for (int i = 0; i < roped_op_inputs(call->op); i++) {
        const struct roped_tensor *cache = &call->in[i];
        if (!roped_tensor_given(cache) || roped_op_updates(call->op, i) < 0)
            continue;
        /* counted in and out; a call writes its share of it */
        bytes -= 2 * roped_tensor_bytes(cache);
        bytes += roped_tensor_bytes(cache) / CACHE_SHARE;
    }
    return bytes;
}
