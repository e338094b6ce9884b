/*
 * rows.c - the rows of bench_ops and how each becomes a call. Shapes and values
 * come from the descriptor: a row says the sizes of its symbols.
 */
#include "bench/rows.h"

#include "kernel/case.h"
#include "kernel/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F32  ROPED_F32
#define F16  ROPED_F16
#define BF16 ROPED_BF16

/* Optional inputs of the rotary operators. */
#define CACHES "k v positions k_cache v_cache slots"
#define PARTS  "q_nope k_nope positions"

/* clang-format off */
const struct bench_row bench_rows[] = {
    {"rope bf16 4 tokens, 32+8 heads x 128", "rope", BF16, "n=4 hq=32 hk=8 d=128", "k positions", .goal = 0.92},
    {"rope bf16 128 tokens", "rope", BF16, "n=128 hq=32 hk=8 d=128", "k positions", .goal = 0.90},
    {"rope bf16 2048 tokens", "rope", BF16, "n=2048 hq=32 hk=8 d=128", "k positions", .goal = 0.97},
    {"rope bf16 131072 tokens neox", "rope", BF16, "n=131072 hq=32 hk=8 d=128", "k positions", .goal = 0.98},
    {"rope bf16 131072 tokens gptj", "rope", BF16, "n=131072 hq=32 hk=8 d=128", "k positions", "style=gptj", .goal = 0.98},
    {"rope bf16 4 tokens, no table", "rope", BF16, "n=4 hq=32 hk=8 d=128", "k positions", "angles=compute", .goal = 0.90},
    {"rope bf16 2048 tokens, no table", "rope", BF16, "n=2048 hq=32 hk=8 d=128", "k positions", "angles=compute", .goal = 0.97},
    {"rope bf16 131072 tokens, no table", "rope", BF16, "n=131072 hq=32 hk=8 d=128", "k positions", "angles=compute"},
    {"rope f16 2048 tokens gptj", "rope", F16, "n=2048 hq=32 hk=8 d=128", "k positions", "style=gptj"},
    {"rope f16 131072 tokens", "rope", F16, "n=131072 hq=32 hk=8 d=128", "k positions"},
    {"rope f32 2048 tokens", "rope", F32, "n=2048 hq=32 hk=8 d=128", "k positions"},
    {"rope f32 128x8192x128, implicit positions", "rope", F32, "bs=128 s=8192 d=128", NULL, "angles=compute&layout=bsd", .goal = 1.00},
    {"rope f32 gptj 4096x512, one head", "rope", F32, "bs=1 s=4096 d=512", NULL, "style=gptj&angles=compute&layout=bsd", .goal = 0.95},
    {"rope f32 gptj 8192x1024, one head", "rope", F32, "bs=1 s=8192 d=1024", NULL, "style=gptj&angles=compute&layout=bsd", .goal = 0.97},
    {"rope bf16 4 tokens of fused rows", "rope", BF16, "n=4 hq=32 hk=8 d=128", "k positions", .of = 6144},
    {"rope bf16 2048 tokens of fused rows", "rope", BF16, "n=2048 hq=32 hk=8 d=128", "k positions", .of = 6144},
    {"rope_quantize e4m3 MLA 1 token", "rope_quantize", BF16, "n=1 hq=128 r=64 p=512", PARTS, "style=gptj", .goal = 0.90},
    {"rope_quantize e4m3 MLA 128 tokens", "rope_quantize", BF16, "n=128 hq=128 r=64 p=512", PARTS, "style=gptj", .goal = 0.97},
    {"rope_quantize e4m3 MLA 8192 tokens", "rope_quantize", BF16, "n=8192 hq=128 r=64 p=512", PARTS, "style=gptj", .goal = 0.97},
    {"rope_quantize e4m3 GQA 8192 tokens", "rope_quantize", BF16, "n=8192 hq=32 hk=8 r=64 p=64", PARTS, "style=gptj", .goal = 0.95},
    {"rope_quantize e4m3 GQA 65536 tokens", "rope_quantize", BF16, "n=65536 hq=32 hk=8 r=64 p=64", PARTS, "style=gptj", .goal = 0.97},
    {"rope_quantize e4m3 GQA 8192 tokens neox", "rope_quantize", BF16, "n=8192 hq=32 hk=8 r=64 p=64", PARTS},
    {"rope_quantize f16 e4m3 GQA 65536 tokens", "rope_quantize", F16, "n=65536 hq=32 hk=8 r=64 p=64", PARTS, "style=gptj"},
    {"qk_rmsnorm_rope bf16 1 token, 32+8 heads x 128", "qk_rmsnorm_rope", BF16, "n=1 hq=32 hk=8 d=128", "k positions q_weight k_weight"},
    {"qk_rmsnorm_rope bf16 4 tokens", "qk_rmsnorm_rope", BF16, "n=4 hq=32 hk=8 d=128", "k positions q_weight k_weight"},
    {"qk_rmsnorm_rope bf16 128 tokens", "qk_rmsnorm_rope", BF16, "n=128 hq=32 hk=8 d=128", "k positions q_weight k_weight"},
    {"qk_rmsnorm_rope bf16 2048 tokens", "qk_rmsnorm_rope", BF16, "n=2048 hq=32 hk=8 d=128", "k positions q_weight k_weight"},
    {"qk_rmsnorm_rope bf16 65536 tokens", "qk_rmsnorm_rope", BF16, "n=65536 hq=32 hk=8 d=128", "k positions q_weight k_weight"},
    {"qk_rmsnorm_rope bf16 65536 tokens gptj", "qk_rmsnorm_rope", BF16, "n=65536 hq=32 hk=8 d=128", "k positions q_weight k_weight", "style=gptj"},
    {"qk_rmsnorm_rope bf16 8192 tokens, 8+4 heads x 256, no table", "qk_rmsnorm_rope", BF16, "n=8192 hq=8 hk=4 d=256", "k positions q_weight k_weight", "angles=compute"},
    {"qk_rmsnorm_rope f32 8192 tokens", "qk_rmsnorm_rope", F32, "n=8192 hq=32 hk=8 d=128", "k positions q_weight k_weight"},
    {"qk_rmsnorm_rope f16 65536 tokens", "qk_rmsnorm_rope", F16, "n=65536 hq=32 hk=8 d=128", "k positions q_weight k_weight"},
    {"rope_append bf16 1 token, 32+8 heads x 128", "rope_append", BF16, "n=1 hq=32 hk=8 d=128", CACHES},
    {"rope_append bf16 8 tokens", "rope_append", BF16, "n=8 hq=32 hk=8 d=128", CACHES},
    {"rope_append bf16 32 tokens", "rope_append", BF16, "n=32 hq=32 hk=8 d=128", CACHES},
    {"rope_append bf16 128 tokens", "rope_append", BF16, "n=128 hq=32 hk=8 d=128", CACHES},
    {"rope_append bf16 2048 tokens", "rope_append", BF16, "n=2048 hq=32 hk=8 d=128", CACHES},
    {"rope_append bf16 65536 tokens", "rope_append", BF16, "n=65536 hq=32 hk=8 d=128", CACHES},
    {"rope_append bf16 65536 tokens gptj", "rope_append", BF16, "n=65536 hq=32 hk=8 d=128", CACHES, "style=gptj"},
    {"rope_append f32 8192 tokens, no table", "rope_append", F32, "n=8192 hq=32 hk=8 d=128", CACHES, "angles=compute"},
    {"rope_append f16 65536 tokens", "rope_append", F16, "n=65536 hq=32 hk=8 d=128", CACHES},
    {"rope_append bf16 e4m3 caches, 1 token", "rope_append", BF16, "n=1 hq=32 hk=8 d=128", CACHES, "cache_dtype=e4m3", .cache = ROPED_U8},
    {"rope_append bf16 e4m3 caches, 8 tokens", "rope_append", BF16, "n=8 hq=32 hk=8 d=128", CACHES, "cache_dtype=e4m3", .cache = ROPED_U8},
    {"rope_append bf16 e4m3 caches, 128 tokens", "rope_append", BF16, "n=128 hq=32 hk=8 d=128", CACHES, "cache_dtype=e4m3", .cache = ROPED_U8},
    {"rope_append bf16 e4m3 caches, 8192 tokens", "rope_append", BF16, "n=8192 hq=32 hk=8 d=128", CACHES, "cache_dtype=e4m3", .cache = ROPED_U8},
    {"rope_append bf16 e4m3 caches, 65536 tokens", "rope_append", BF16, "n=65536 hq=32 hk=8 d=128", CACHES, "cache_dtype=e4m3", .cache = ROPED_U8},
    {"rope_append bf16 MLA 1 token", "rope_append", BF16, "n=1 hq=128 d=64 p=512", "v positions k_cache slots", "style=gptj"},
    {"rope_append bf16 MLA 128 tokens", "rope_append", BF16, "n=128 hq=128 d=64 p=512", "v positions k_cache slots", "style=gptj"},
    {"rope_append bf16 MLA 8192 tokens", "rope_append", BF16, "n=8192 hq=128 d=64 p=512", "v positions k_cache slots", "style=gptj"},
    {"rope_append bf16 MLA e4m3 cache, 1 token", "rope_append", BF16, "n=1 hq=128 d=64 p=512", "v positions k_cache slots", "cache_dtype=e4m3&style=gptj", .cache = ROPED_U8},
    {"rope_append bf16 MLA e4m3 cache, 128 tokens", "rope_append", BF16, "n=128 hq=128 d=64 p=512", "v positions k_cache slots", "cache_dtype=e4m3&style=gptj", .cache = ROPED_U8},
    {"rope_append bf16 MLA e4m3 cache, 8192 tokens", "rope_append", BF16, "n=8192 hq=128 d=64 p=512", "v positions k_cache slots", "cache_dtype=e4m3&style=gptj", .cache = ROPED_U8},
    {"qk_rmsnorm_rope_append bf16 1 token", "qk_rmsnorm_rope_append", BF16, "n=1 hq=32 hk=8 d=128", CACHES " q_weight k_weight"},
    {"qk_rmsnorm_rope_append bf16 8 tokens", "qk_rmsnorm_rope_append", BF16, "n=8 hq=32 hk=8 d=128", CACHES " q_weight k_weight"},
    {"qk_rmsnorm_rope_append bf16 128 tokens", "qk_rmsnorm_rope_append", BF16, "n=128 hq=32 hk=8 d=128", CACHES " q_weight k_weight"},
    {"qk_rmsnorm_rope_append bf16 2048 tokens", "qk_rmsnorm_rope_append", BF16, "n=2048 hq=32 hk=8 d=128", CACHES " q_weight k_weight"},
    {"qk_rmsnorm_rope_append bf16 65536 tokens", "qk_rmsnorm_rope_append", BF16, "n=65536 hq=32 hk=8 d=128", CACHES " q_weight k_weight"},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 1 token", "qk_rmsnorm_rope_append", BF16, "n=1 hq=32 hk=8 d=128", CACHES " q_weight k_weight", "cache_dtype=e4m3", .cache = ROPED_U8},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 8 tokens", "qk_rmsnorm_rope_append", BF16, "n=8 hq=32 hk=8 d=128", CACHES " q_weight k_weight", "cache_dtype=e4m3", .cache = ROPED_U8},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 128 tokens", "qk_rmsnorm_rope_append", BF16, "n=128 hq=32 hk=8 d=128", CACHES " q_weight k_weight", "cache_dtype=e4m3", .cache = ROPED_U8},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 8192 tokens", "qk_rmsnorm_rope_append", BF16, "n=8192 hq=32 hk=8 d=128", CACHES " q_weight k_weight", "cache_dtype=e4m3", .cache = ROPED_U8},
    {"qk_rmsnorm_rope_append bf16 e4m3 caches, 65536 tokens", "qk_rmsnorm_rope_append", BF16, "n=65536 hq=32 hk=8 d=128", CACHES " q_weight k_weight", "cache_dtype=e4m3", .cache = ROPED_U8},
    {"rope_quantize_append e4m3 MLA 1 token", "rope_quantize_append", BF16, "n=1 hq=128 r=64 p=512 pagesize=1", PARTS " ckv_cache kpe_cache", "style=gptj"},
    {"rope_quantize_append e4m3 MLA 32 tokens", "rope_quantize_append", BF16, "n=32 hq=128 r=64 p=512", PARTS " ckv_cache kpe_cache", "style=gptj"},
    {"rope_quantize_append e4m3 MLA 128 tokens", "rope_quantize_append", BF16, "n=128 hq=128 r=64 p=512", PARTS " ckv_cache kpe_cache", "style=gptj"},
    {"rope_quantize_append e4m3 MLA 8192 tokens", "rope_quantize_append", BF16, "n=8192 hq=128 r=64 p=512", PARTS " ckv_cache kpe_cache", "style=gptj"},
    {"rope_quantize_append e4m3 GQA 1 token", "rope_quantize_append", BF16, "n=1 hq=32 hk=8 r=64 p=64 pagesize=1", PARTS " v k_cache v_cache"},
    {"rope_quantize_append e4m3 GQA 128 tokens", "rope_quantize_append", BF16, "n=128 hq=32 hk=8 r=64 p=64", PARTS " v k_cache v_cache"},
    {"rope_quantize_append e4m3 GQA 8192 tokens", "rope_quantize_append", BF16, "n=8192 hq=32 hk=8 r=64 p=64", PARTS " v k_cache v_cache"},
    {"rope_quantize_append e4m3 GQA 65536 tokens", "rope_quantize_append", BF16, "n=65536 hq=32 hk=8 r=64 p=64", PARTS " v k_cache v_cache"},
    {"rope_quantize_append e4m3 32+8 x 128, 8192 tokens", "rope_quantize_append", BF16, "n=8192 hq=32 hk=8 r=128", "positions v k_cache v_cache"},
    {"rope_quantize_append f16 e4m3 GQA 65536 tokens", "rope_quantize_append", F16, "n=65536 hq=32 hk=8 r=64 p=64", PARTS " v k_cache v_cache"},
    {"rmsnorm bf16 1x4096", "rmsnorm", BF16, "rows=1 h=4096", "weight", .goal = 0.85},
    {"rmsnorm bf16 64x4096", "rmsnorm", BF16, "rows=64 h=4096", "weight", .goal = 0.90},
    {"rmsnorm bf16 4096x4096", "rmsnorm", BF16, "rows=4096 h=4096", "weight", .goal = 0.96},
    {"rmsnorm bf16 65536x4096", "rmsnorm", BF16, "rows=65536 h=4096", "weight", .goal = 0.98},
    {"rmsnorm f16 4096x4096", "rmsnorm", F16, "rows=4096 h=4096", "weight"},
    {"rmsnorm f16 65536x4096", "rmsnorm", F16, "rows=65536 h=4096", "weight"},
    {"rmsnorm f32 1x4096", "rmsnorm", F32, "rows=1 h=4096", "weight", .goal = 0.85},
    {"rmsnorm f32 32768x4096", "rmsnorm", F32, "rows=32768 h=4096", "weight", .goal = 0.98},
    {"rmsnorm bf16 16384x16384", "rmsnorm", BF16, "rows=16384 h=16384", "weight", .goal = 0.97},
    {"rmsnorm bf16 262144x128", "rmsnorm", BF16, "rows=262144 h=128", "weight", .goal = 0.95},
    {"rmsnorm bf16 4096x512 of 576", "rmsnorm", BF16, "rows=4096 h=512", "weight", .of = 576},
    {"rmsnorm bf16 512x4096 of 6144", "rmsnorm", BF16, "rows=512 h=4096", "weight", .of = 6144},
    {"rmsnorm bf16 16384x128 of 192", "rmsnorm", BF16, "rows=16384 h=128", "weight", .of = 192},
    {"rmsnorm_quantize bf16 e4m3 4096x512 of 576", "rmsnorm_quantize", BF16, "rows=4096 h=512", "weight", "dequant_scale=0.05", .of = 576},
    {"add_rmsnorm bf16 1x4096", "add_rmsnorm", BF16, "rows=1 h=4096", "weight"},
    {"add_rmsnorm bf16 64x4096", "add_rmsnorm", BF16, "rows=64 h=4096", "weight"},
    {"add_rmsnorm bf16 4096x4096", "add_rmsnorm", BF16, "rows=4096 h=4096", "weight"},
    {"add_rmsnorm bf16 65536x4096", "add_rmsnorm", BF16, "rows=65536 h=4096", "weight"},
    {"add_rmsnorm f32 32768x4096", "add_rmsnorm", F32, "rows=32768 h=4096", "weight"},
    {"add_rmsnorm f16 65536x4096", "add_rmsnorm", F16, "rows=65536 h=4096", "weight"},
    {"add_rmsnorm bf16 16384x16384", "add_rmsnorm", BF16, "rows=16384 h=16384", "weight"},
    {"add_rmsnorm bf16 1x4096 rounded as Hugging Face", "add_rmsnorm", BF16, "rows=1 h=4096", "weight", "rounding=hf&sum_rounding=type"},
    {"add_rmsnorm bf16 65536x4096 rounded as Hugging Face", "add_rmsnorm", BF16, "rows=65536 h=4096", "weight", "rounding=hf&sum_rounding=type"},
    {"add_rmsnorm bf16 1x4096 as Granite", "add_rmsnorm", BF16, "rows=1 h=4096", "weight", "x_scale=0.22&rounding=hf&sum_rounding=type"},
    {"add_rmsnorm bf16 65536x4096 as Granite", "add_rmsnorm", BF16, "rows=65536 h=4096", "weight", "x_scale=0.22&rounding=hf&sum_rounding=type"},
    {"add_rmsnorm bf16 65536x4096 scaled", "add_rmsnorm", BF16, "rows=65536 h=4096", "weight", "x_scale=0.22"},
    {"rmsnorm_add bf16 1x4096", "rmsnorm_add", BF16, "rows=1 h=4096", "weight"},
    {"rmsnorm_add bf16 64x4096", "rmsnorm_add", BF16, "rows=64 h=4096", "weight"},
    {"rmsnorm_add bf16 65536x4096", "rmsnorm_add", BF16, "rows=65536 h=4096", "weight"},
    {"rmsnorm_add f32 32768x4096", "rmsnorm_add", F32, "rows=32768 h=4096", "weight"},
    {"gated_rmsnorm bf16 1x4096", "gated_rmsnorm", BF16, "rows=1 h=4096", "weight", "gate_first=true&rounding=hf"},
    {"gated_rmsnorm bf16 64x4096", "gated_rmsnorm", BF16, "rows=64 h=4096", "weight", "gate_first=true&rounding=hf"},
    {"gated_rmsnorm bf16 65536x4096", "gated_rmsnorm", BF16, "rows=65536 h=4096", "weight", "gate_first=true&rounding=hf"},
    {"gated_rmsnorm bf16 16384x8192 by 1024", "gated_rmsnorm", BF16, "rows=16384 h=8192", "weight", "gate_first=true&rounding=hf&group_size=1024"},
    {"gated_rmsnorm bf16 262144x128, gate after", "gated_rmsnorm", BF16, "rows=262144 h=128", "weight", "rounding=hf"},
    {"gated_rmsnorm f32 32768x4096", "gated_rmsnorm", F32, "rows=32768 h=4096", "weight"},
    {"layer_norm bf16 1x4096", "layer_norm", BF16, "rows=1 h=4096", "weight bias"},
    {"layer_norm bf16 64x4096", "layer_norm", BF16, "rows=64 h=4096", "weight bias"},
    {"layer_norm bf16 4096x4096", "layer_norm", BF16, "rows=4096 h=4096", "weight bias"},
    {"layer_norm bf16 65536x4096", "layer_norm", BF16, "rows=65536 h=4096", "weight bias"},
    {"layer_norm f16 65536x4096", "layer_norm", F16, "rows=65536 h=4096", "weight bias"},
    {"layer_norm f32 32768x4096", "layer_norm", F32, "rows=32768 h=4096", "weight bias"},
    {"layer_norm bf16 16384x16384", "layer_norm", BF16, "rows=16384 h=16384", "weight bias"},
    {"layer_norm bf16 262144x768", "layer_norm", BF16, "rows=262144 h=768", "weight bias"},
    {"add_layer_norm bf16 1x4096", "add_layer_norm", BF16, "rows=1 h=4096", "weight bias"},
    {"add_layer_norm bf16 64x4096", "add_layer_norm", BF16, "rows=64 h=4096", "weight bias"},
    {"add_layer_norm bf16 65536x4096", "add_layer_norm", BF16, "rows=65536 h=4096", "weight bias"},
    {"add_layer_norm f32 32768x4096", "add_layer_norm", F32, "rows=32768 h=4096", "weight bias"},
    {"add_layer_norm bf16 1x4096 as GPT-J", "add_layer_norm", BF16, "rows=1 h=4096", "weight bias addend", "sum_rounding=type"},
    {"add_layer_norm bf16 65536x4096 as GPT-J", "add_layer_norm", BF16, "rows=65536 h=4096", "weight bias addend", "sum_rounding=type"},
    {"rmsnorm_quantize bf16 e4m3 1x4096", "rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dequant_scale=0.05"},
    {"rmsnorm_quantize bf16 e4m3 64x4096", "rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dequant_scale=0.05"},
    {"rmsnorm_quantize bf16 e4m3 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dequant_scale=0.05"},
    {"rmsnorm_quantize bf16 e4m3 16384x16384", "rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dequant_scale=0.05"},
    {"rmsnorm_quantize bf16 e4m3 dynamic 1x4096", "rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true"},
    {"rmsnorm_quantize bf16 e4m3 dynamic 64x4096", "rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true"},
    {"rmsnorm_quantize bf16 e4m3 dynamic 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true"},
    {"rmsnorm_quantize bf16 e4m3 dynamic 16384x16384", "rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dynamic=true"},
    {"rmsnorm_quantize bf16 e4m3 by 128 1x4096", "rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&group_size=128"},
    {"rmsnorm_quantize bf16 e4m3 by 128 64x4096", "rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&group_size=128"},
    {"rmsnorm_quantize bf16 e4m3 by 128 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&group_size=128"},
    {"rmsnorm_quantize bf16 e4m3 by 128 16384x16384", "rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dynamic=true&group_size=128"},
    {"rmsnorm_quantize f16 e4m3 65536x4096", "rmsnorm_quantize", F16, "rows=65536 h=4096", "weight", "dequant_scale=0.05"},
    {"rmsnorm_quantize f16 e5m2 dynamic 65536x4096", "rmsnorm_quantize", F16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=e5m2"},
    {"rmsnorm_quantize bf16 e4m3 by 32 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&group_size=32"},
    {"rmsnorm_quantize bf16 e4m3 by 16 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&group_size=16"},
    {"rmsnorm_quantize bf16 e4m3 dynamic 65536x4096 rounded as vLLM", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&rounding=type"},
    {"rmsnorm_quantize bf16 e4m3 powers of two 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&scale_rounding=power_of_two"},
    {"rmsnorm_quantize bf16 int8 1x4096", "rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&output_dtype=int8"},
    {"rmsnorm_quantize bf16 int8 64x4096", "rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&output_dtype=int8"},
    {"rmsnorm_quantize bf16 int8 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=int8"},
    {"rmsnorm_quantize bf16 int8 given 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "output_dtype=int8&dequant_scale=0.05"},
    {"rmsnorm_quantize bf16 mxfp8 1x4096", "rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&output_dtype=mxfp8"},
    {"rmsnorm_quantize bf16 mxfp8 64x4096", "rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&output_dtype=mxfp8"},
    {"rmsnorm_quantize bf16 mxfp8 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=mxfp8"},
    {"rmsnorm_quantize bf16 mxfp8 swizzled 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=mxfp8&scale_layout=swizzled"},
    {"rmsnorm_quantize bf16 mxfp4 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=mxfp4"},
    {"rmsnorm_quantize bf16 nvfp4 1x4096", "rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"rmsnorm_quantize bf16 nvfp4 64x4096", "rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"rmsnorm_quantize bf16 nvfp4 65536x4096", "rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"rmsnorm_quantize bf16 nvfp4 16384x16384", "rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"add_rmsnorm_quantize bf16 e4m3 1x4096", "add_rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dequant_scale=0.05"},
    {"add_rmsnorm_quantize bf16 e4m3 64x4096", "add_rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dequant_scale=0.05"},
    {"add_rmsnorm_quantize bf16 e4m3 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dequant_scale=0.05"},
    {"add_rmsnorm_quantize bf16 e4m3 16384x16384", "add_rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dequant_scale=0.05"},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 1x4096", "add_rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true"},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 64x4096", "add_rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true"},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true"},
    {"add_rmsnorm_quantize bf16 e4m3 dynamic 16384x16384", "add_rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dynamic=true"},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 1x4096", "add_rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&group_size=128"},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 64x4096", "add_rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&group_size=128"},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&group_size=128"},
    {"add_rmsnorm_quantize bf16 e4m3 by 128 16384x16384", "add_rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dynamic=true&group_size=128"},
    {"add_rmsnorm_quantize f16 e4m3 dynamic 65536x4096", "add_rmsnorm_quantize", F16, "rows=65536 h=4096", "weight", "dynamic=true"},
    {"add_rmsnorm_quantize f32 e4m3 32768x4096", "add_rmsnorm_quantize", F32, "rows=32768 h=4096", "weight", "dequant_scale=0.05"},
    {"add_rmsnorm_quantize bf16 int8 1x4096", "add_rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&output_dtype=int8"},
    {"add_rmsnorm_quantize bf16 int8 64x4096", "add_rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&output_dtype=int8"},
    {"add_rmsnorm_quantize bf16 int8 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=int8"},
    {"add_rmsnorm_quantize bf16 int8 given 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "output_dtype=int8&dequant_scale=0.05"},
    {"add_rmsnorm_quantize bf16 mxfp8 1x4096", "add_rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&output_dtype=mxfp8"},
    {"add_rmsnorm_quantize bf16 mxfp8 64x4096", "add_rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&output_dtype=mxfp8"},
    {"add_rmsnorm_quantize bf16 mxfp8 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=mxfp8"},
    {"add_rmsnorm_quantize bf16 mxfp8 swizzled 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=mxfp8&scale_layout=swizzled"},
    {"add_rmsnorm_quantize bf16 mxfp4 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=mxfp4"},
    {"add_rmsnorm_quantize bf16 nvfp4 1x4096", "add_rmsnorm_quantize", BF16, "rows=1 h=4096", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"add_rmsnorm_quantize bf16 nvfp4 64x4096", "add_rmsnorm_quantize", BF16, "rows=64 h=4096", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"add_rmsnorm_quantize bf16 nvfp4 65536x4096", "add_rmsnorm_quantize", BF16, "rows=65536 h=4096", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"add_rmsnorm_quantize bf16 nvfp4 16384x16384", "add_rmsnorm_quantize", BF16, "rows=16384 h=16384", "weight", "dynamic=true&output_dtype=nvfp4&global_scale=500"},
    {"rmsnorm_backward bf16 1x4096", "rmsnorm_backward", BF16, "rows=1 h=4096", "weight"},
    {"rmsnorm_backward bf16 64x4096", "rmsnorm_backward", BF16, "rows=64 h=4096", "weight"},
    {"rmsnorm_backward bf16 2048x4096", "rmsnorm_backward", BF16, "rows=2048 h=4096", "weight"},
    {"rmsnorm_backward bf16 65536x4096", "rmsnorm_backward", BF16, "rows=65536 h=4096", "weight"},
    {"rmsnorm_backward bf16 65536x4096 and residual", "rmsnorm_backward", BF16, "rows=65536 h=4096", "weight grad_residual"},
    {"rmsnorm_backward bf16 32768x8192", "rmsnorm_backward", BF16, "rows=32768 h=8192", "weight"},
    {"rmsnorm_backward bf16 16384x16384", "rmsnorm_backward", BF16, "rows=16384 h=16384", "weight"},
    {"rmsnorm_backward bf16 262144x1024", "rmsnorm_backward", BF16, "rows=262144 h=1024", "weight"},
    {"rmsnorm_backward bf16 16384x5120", "rmsnorm_backward", BF16, "rows=16384 h=5120", "weight"},
    {"rmsnorm_backward bf16 262144x128", "rmsnorm_backward", BF16, "rows=262144 h=128", "weight"},
    {"rmsnorm_backward f32 32768x4096", "rmsnorm_backward", F32, "rows=32768 h=4096", "weight"},
    {"layer_norm_backward bf16 1x4096", "layer_norm_backward", BF16, "rows=1 h=4096", "weight bias"},
    {"layer_norm_backward bf16 2048x4096", "layer_norm_backward", BF16, "rows=2048 h=4096", "weight bias"},
    {"layer_norm_backward bf16 65536x4096", "layer_norm_backward", BF16, "rows=65536 h=4096", "weight bias"},
    {"layer_norm_backward bf16 16384x8192", "layer_norm_backward", BF16, "rows=16384 h=8192", "weight bias"},
    {"layer_norm_backward f32 32768x4096", "layer_norm_backward", F32, "rows=32768 h=4096", "weight bias"},
    {"mul backward f32 16x1024x4096", "binary_backward", F32, "o=16,1024,4096 a=16,1024,4096 b=16,1024,4096", "a b", "function=mul", .goal = 1.05},
    {"mul backward f32 16x1024x4096, b 1x1x4096", "binary_backward", F32, "o=16,1024,4096 a=16,1024,4096 b=1,1,4096", "a b", "function=mul", .goal = 0.97},
    {"mul backward f32 16x1024x4096, b 16x1024x1", "binary_backward", F32, "o=16,1024,4096 a=16,1024,4096 b=16,1024,1", "a b", "function=mul", .goal = 0.98},
    {"mul backward f32 16x1024x4096, b 1x1024x1", "binary_backward", F32, "o=16,1024,4096 a=16,1024,4096 b=1,1024,1", "a b", "function=mul", .goal = 0.98},
    {"mul backward f32 16x1024x4096, b scalar", "binary_backward", F32, "o=16,1024,4096 a=16,1024,4096 b=1,1,1", "a b", "function=mul", .goal = 0.98},
    {"mul backward bf16 16x1024x4096", "binary_backward", BF16, "o=16,1024,4096 a=16,1024,4096 b=16,1024,4096", "a b", "function=mul"},
    {"mul backward bf16 16x1024x4096, b 1x1x4096", "binary_backward", BF16, "o=16,1024,4096 a=16,1024,4096 b=1,1,4096", "a b", "function=mul"},
    {"mul backward bf16 16x1024x4096, b 16x1024x1", "binary_backward", BF16, "o=16,1024,4096 a=16,1024,4096 b=16,1024,1", "a b", "function=mul"},
    {"mul backward bf16 16x1024x4096, b scalar", "binary_backward", BF16, "o=16,1024,4096 a=16,1024,4096 b=1,1,1", "a b", "function=mul"},
    {"mul backward f16 16x1024x4096", "binary_backward", F16, "o=16,1024,4096 a=16,1024,4096 b=16,1024,4096", "a b", "function=mul"},
    {"mul backward f16 16x1024x4096, b 1x1x4096", "binary_backward", F16, "o=16,1024,4096 a=16,1024,4096 b=1,1,4096", "a b", "function=mul"},
    {"mul backward f32 1x64x4096, b 1x1x4096", "binary_backward", F32, "o=1,64,4096 a=1,64,4096 b=1,1,4096", "a b", "function=mul"},
    {"act_and_mul bf16 1x4096", "act_and_mul", BF16, "rows=1 h=4096", "x"},
    {"act_and_mul bf16 1x14336", "act_and_mul", BF16, "rows=1 h=14336", "x"},
    {"act_and_mul bf16 64x14336", "act_and_mul", BF16, "rows=64 h=14336", "x"},
    {"act_and_mul bf16 16384x14336", "act_and_mul", BF16, "rows=16384 h=14336", "x"},
    {"act_and_mul f32 8192x14336", "act_and_mul", F32, "rows=8192 h=14336", "x"},
    {"act_and_mul bf16 16384x14336 gelu", "act_and_mul", BF16, "rows=16384 h=14336", "x", "activation=gelu"},
    {"act_and_mul bf16 16384x14336 gelu_tanh", "act_and_mul", BF16, "rows=16384 h=14336", "x", "activation=gelu_tanh"},
    {"act_and_mul bf16 16384x2880 pairs", "act_and_mul", BF16, "rows=16384 h=2880", "x", "activation=swiglu_oai&interleaved=true"},
    {"act_and_mul_backward bf16 1x14336", "act_and_mul_backward", BF16, "rows=1 h=14336", "x"},
    {"act_and_mul_backward bf16 64x14336", "act_and_mul_backward", BF16, "rows=64 h=14336", "x"},
    {"act_and_mul_backward bf16 16384x14336", "act_and_mul_backward", BF16, "rows=16384 h=14336", "x"},
    {"act_and_mul_backward f32 8192x14336", "act_and_mul_backward", F32, "rows=8192 h=14336", "x"},
    {"act_and_mul_backward bf16 16384x14336 gelu", "act_and_mul_backward", BF16, "rows=16384 h=14336", "x", "activation=gelu"},
    {"act_and_mul_backward bf16 16384x14336 gelu_tanh", "act_and_mul_backward", BF16, "rows=16384 h=14336", "x", "activation=gelu_tanh"},
    {"act_and_mul_backward bf16 16384x2880 pairs", "act_and_mul_backward", BF16, "rows=16384 h=2880", "x", "activation=swiglu_oai&interleaved=true"},
    {"act_and_mul_backward bf16 16384x14336 two tensors", "act_and_mul_backward", BF16, "rows=16384 h=14336", "gate up"},
    {"act_and_mul_quantize bf16 e4m3 row 1x14336", "act_and_mul_quantize", BF16, "rows=1 h=14336", "x"},
    {"act_and_mul_quantize bf16 e4m3 row 64x14336", "act_and_mul_quantize", BF16, "rows=64 h=14336", "x"},
    {"act_and_mul_quantize bf16 e4m3 row 16384x14336", "act_and_mul_quantize", BF16, "rows=16384 h=14336", "x"},
    {"act_and_mul_quantize bf16 e4m3 group 16384x14336", "act_and_mul_quantize", BF16, "rows=16384 h=14336", "x", "granularity=group"},
    {"act_and_mul_quantize bf16 e4m3 given 16384x14336", "act_and_mul_quantize", BF16, "rows=16384 h=14336", "x", "dynamic=false&dequant_scale=0.05"},
    {"act_and_mul_quantize bf16 mxfp8 16384x14336", "act_and_mul_quantize", BF16, "rows=16384 h=14336", "x", "output_dtype=mxfp8"},
    {"act_and_mul_quantize bf16 nvfp4 16384x14336", "act_and_mul_quantize", BF16, "rows=16384 h=14336", "x", "output_dtype=nvfp4&global_scale=500"},
    {"quantize bf16 e4m3 row 1x4096", "quantize", BF16, "rows=1 h=4096"},
    {"quantize bf16 e4m3 row 64x4096", "quantize", BF16, "rows=64 h=4096"},
    {"quantize bf16 e4m3 row 65536x4096", "quantize", BF16, "rows=65536 h=4096"},
    {"quantize bf16 e4m3 group 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "granularity=group"},
    {"quantize bf16 e4m3 block 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "granularity=block"},
    {"quantize bf16 e4m3 given 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "dynamic=false&dequant_scale=0.05"},
    {"quantize bf16 e4m3 tensor 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "granularity=tensor", .goal = 0.6},
    {"quantize bf16 int8 row 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "output_dtype=int8"},
    {"quantize f32 e4m3 row 32768x4096", "quantize", F32, "rows=32768 h=4096"},
    {"quantize bf16 mxfp8 1x4096", "quantize", BF16, "rows=1 h=4096", NULL, "output_dtype=mxfp8"},
    {"quantize bf16 mxfp8 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "output_dtype=mxfp8"},
    {"quantize bf16 mxfp8 swizzled 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "output_dtype=mxfp8&scale_layout=swizzled"},
    {"quantize bf16 mxfp4 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "output_dtype=mxfp4"},
    {"quantize bf16 nvfp4 1x4096", "quantize", BF16, "rows=1 h=4096", NULL, "output_dtype=nvfp4&global_scale=500"},
    {"quantize bf16 nvfp4 65536x4096", "quantize", BF16, "rows=65536 h=4096", NULL, "output_dtype=nvfp4&global_scale=500"},
    {"dequantize mxfp4 bf16 65536x4096", "dequantize", ROPED_U8, "rows=65536 h=4096", "scales", "input_dtype=mxfp4&output_dtype=bf16"},
    {"dequantize nvfp4 bf16 65536x4096", "dequantize", ROPED_U8, "rows=65536 h=4096", "scales", "input_dtype=nvfp4&output_dtype=bf16"},
    {"dequantize e4m3 bf16 row 1x4096", "dequantize", BF16, "rows=1 h=4096", "scales", "output_dtype=bf16"},
    {"dequantize e4m3 bf16 row 65536x4096", "dequantize", BF16, "rows=65536 h=4096", "scales", "output_dtype=bf16"},
    {"dequantize e4m3 bf16 group 65536x4096", "dequantize", BF16, "rows=65536 h=4096 group_size=128", "scales", "output_dtype=bf16&granularity=group"},
    {"dequantize e4m3 bf16 block 65536x4096", "dequantize", BF16, "rows=65536 h=4096", "scales", "output_dtype=bf16&granularity=block"},
    {"dequantize e5m2 f32 row 32768x4096", "dequantize", ROPED_F8_E5M2, "rows=32768 h=4096", "scales", NULL},
    {"dequantize int8 bf16 given 65536x4096", "dequantize", ROPED_I8, "rows=65536 h=4096", NULL, "output_dtype=bf16&dequant_scale=0.05"},
    {"compare bf16 1x4096", "compare", BF16, "rows=1 h=4096"},
    {"compare bf16 65536x4096", "compare", BF16, "rows=65536 h=4096"},
    {"compare f16 65536x4096", "compare", F16, "rows=65536 h=4096"},
    {"compare f32 32768x4096", "compare", F32, "rows=32768 h=4096"},
};
/* clang-format on */
const int bench_n_rows = sizeof bench_rows / sizeof *bench_rows;

static struct random_source source = {23};

/* Entries of a cache per entry that a call writes. */
enum { CACHE_SHARE = 2, POSITIONS = 8192 };

/* What sizes follow from others where a row does not say them: caches, and one
 * request whose pages have 16 entries. */
static const struct roped_port usual[] = {
    {.name = "slots", .shape = "2n"},
    {.name = "pagesize", .shape = "16"},
    {.name = "indices", .shape = "n/pagesize"},
    {.name = "pages", .shape = "2indices"},
    {.name = "requests", .shape = "1"}};

static void refuse(const struct bench_row *row, const char *what,
                   const char *why)
{
    fprintf(stderr, "%s: %s %s\n", row->name, what, why);
    exit(EXIT_FAILURE);
}

/* What stands behind a word in "n=4 hq=32", or the word itself in "k v"; NULL:
 * it is not there. */
static const char *find_word(const char *text, const char *word, char end)
{
    size_t length = strlen(word);
    for (; text; text = strchr(text, ' ') ? strchr(text, ' ') + 1 : NULL)
        if (strncmp(text, word, length) == 0 &&
            (text[length] == end || (end == ' ' && !text[length])))
            return text + length + (end == '=');
    return NULL;
}

static bool size_of(const void *context, const char *symbol, int64_t *size)
{
    const struct bench_row *row = context;
    const char *said = find_word(row->sizes, symbol, '=');
    struct roped_shape_pattern pattern;
    struct roped_error err;
    *size = said ? strtoll(said, NULL, 10) : 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual && !said; i++)
        if (strcmp(usual[i].name, symbol) == 0 &&
            !roped_port_pattern(&usual[i], 0, &pattern, &err))
            *size = roped_dim_evaluate(&pattern.dim[0], size_of, row).size;
    return *size > 0;
}

/* ------------------------------------------------------------------ tensors */

/* Appends "16,1024,4096", or one size; a pack that has none is empty. */
static void add_pack(const struct bench_row *row, const char *name,
                     struct roped_tensor *tensor)
{
    char *end = NULL;
    for (const char *at = find_word(row->sizes, name, '='); at;
         at = *end == ',' ? end + 1 : NULL)
        tensor->dims[tensor->rank++] = strtoll(at, &end, 10);
}

/* The shape of an alternative; false: a symbol has no size. */
static bool shape_of(const struct bench_row *row,
                     const struct roped_shape_pattern *pattern,
                     struct roped_tensor *tensor)
{
    tensor->rank = 0;
    for (int i = 0; i < pattern->count; i++) {
        const struct roped_dim_pattern *dim = &pattern->dim[i];
        if (dim->is_pack) {
            add_pack(row, dim->name, tensor);
            continue;
        }
        struct roped_dim_size found = roped_dim_evaluate(dim, size_of, row);
        if (found.state != ROPED_DIM_SIZED)
            return false;
        tensor->dims[tensor->rank++] = found.size;
    }
    return true;
}

/* The shape of an input in a form, where its symbols have sizes. */
static bool find_shape(const struct bench_row *row,
                       const struct roped_call *call, int input,
                       struct roped_tensor *tensor)
{
    const struct roped_port *port = &call->op->in[input];
    struct roped_shape_pattern pattern;
    struct roped_error err;
    bool is_guarded = roped_port_is_guarded(port);
    int n = is_guarded ? roped_port_alternatives(port) : 1;
    for (int i = 0; i < n; i++)
        if ((!is_guarded ||
             roped_condition_holds(call, roped_port_condition(port, i))) &&
            !roped_port_pattern(port, is_guarded ? i : call->form, &pattern,
                                &err) &&
            shape_of(row, &pattern, tensor))
            return true;
    return false;
}

/* Caches have the type of the row, unless it says one; indexes the widest. */
static enum roped_dtype type_of(const struct bench_row *row,
                                const struct roped_op *op, int input)
{
    uint32_t set = roped_op_types(op, &op->in[input]);
    enum roped_dtype own = op->in[input].flags & ROPED_UPDATED && row->cache
                               ? row->cache
                               : row->dtype;
    if (set & ROPED_SET(own))
        return own;
    if (set & ROPED_SET(ROPED_I64))
        return ROPED_I64;
    return set & ROPED_SET(F32) ? F32 : ROPED_F8_E4M3;
}

/* Lays out the inputs of a form in call; false: it is not the row's. */
static bool lay_out(const struct bench_row *row, struct roped_call *call,
                    int form)
{
    const struct roped_op *op = call->op;
    call->form = form;
    for (int i = 0; i < call->n_in; i++) /* for conditions on what is given */
        if (!(op->in[i].flags & ROPED_OPTIONAL) ||
            find_word(row->inputs, op->in[i].name, ' '))
            call->in[i].dtype = type_of(row, op, i);
    for (int i = 0; i < call->n_in; i++)
        if (roped_tensor_given(&call->in[i]) &&
            !find_shape(row, call, i, &call->in[i]))
            return false;
    return true;
}

/* ------------------------------------------------------------------- values */

/* Large tensors repeat a random block: drawing each value takes minutes. */
static void fill_floats(const struct roped_tensor *tensor)
{
    size_t bytes = (size_t)roped_tensor_bytes(tensor);
    size_t block = bytes < (1u << 20) ? bytes : 1u << 20;
    unsigned char *memory = tensor->data;
    struct roped_tensor head = {
        .dtype = tensor->dtype,
        .rank = 1,
        .data = memory,
        .dims = {(int64_t)(block / roped_dtype_bytes(tensor->dtype))}};
    random_fill(&source, &head, 1, false);
    for (size_t at = block; at < bytes; at += block)
        memcpy(memory + at, memory, bytes - at < block ? bytes - at : block);
}

/* Places of n in a cache of more, in no order: an odd factor permutes a power
 * of two. */
static int64_t place_of(int64_t i, int64_t n, int64_t below)
{
    int64_t places = 1;
    while (places < n)
        places *= 2;
    return (i * 2654435761 & (places - 1)) % below;
}

/* Positions count up; what leads to a place is in no order. */
static void fill_indexes(const struct roped_call *call, int input)
{
    const struct roped_tensor *tensor = &call->in[input];
    int64_t n = roped_tensor_elements(tensor);
    struct roped_holds holds;
    struct roped_error err = {.text = ""};
    int which;
    if (roped_port_holds(&call->op->in[input], &holds, &err))
        exit(EXIT_FAILURE); /* the table has passed its check */
    int64_t below = roped_call_below(call, &holds, &which);
    for (int64_t i = 0; i < n; i++) {
        int64_t value = i;
        if (holds.kind == ROPED_HOLDS_STARTS)
            value = n > 1 ? i * below / (n - 1) : 0;
        else if (holds.kind == ROPED_HOLDS_INDEXES)
            value = strcmp(holds.noun, "position") == 0 ? i % POSITIONS
                                                        : place_of(i, n, below);
        case_set_int(tensor, i, value);
    }
}

/* Codes: any will do, but not from uninitialised memory. */
static void fill(struct roped_call *call, int input)
{
    struct roped_tensor *tensor = &call->in[input];
    uint32_t type = ROPED_SET(tensor->dtype);
    size_t bytes = (size_t)roped_tensor_bytes(tensor);
    tensor->data = malloc(bytes ? bytes : 1);
    if (!tensor->data)
        exit(EXIT_FAILURE);
    if (type & ROPED_INDEXES)
        fill_indexes(call, input);
    else if (type & ROPED_FLOATS)
        fill_floats(tensor);
    else
        memset(tensor->data, 0x3C, bytes);
}

void bench_resolve(struct roped_call *call, const struct bench_row *row)
{
    static struct roped_call bare;
    struct roped_error err = {.text = ""};
    int form = 0;
    roped_call_init(&bare, roped_op_find(row->op));
    case_params(&bare, row->params);
    for (*call = bare; !lay_out(row, call, form); *call = bare)
        if (++form == roped_op_forms(bare.op))
            refuse(row, row->sizes, "fits no form");
    if (roped_call_resolve(call, &err))
        refuse(row, "is refused:", err.text);
}

void bench_build(struct roped_call *call, const struct bench_row *row)
{
    bench_resolve(call, row);
    for (int i = 0; i < call->n_in; i++)
        if (roped_tensor_given(&call->in[i]))
            fill(call, i);
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
