"""Small configurations of transformers' causal language models, and what kvbench says of those that it
does not dump or score. Used by test_dump_zoo.py.

A type that is in no table is built from SIZES, dumped, replayed and scored.
"""

SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.2,
         "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         # Experts.
         "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
         "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_k": 2, "moe_topk": 2,
         "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1,
         "n_shared_experts": 1, "first_k_dense_replace": 1, "expert_ffn_hidden_size": 32, "zero_expert_num": 2,
         # Encoders and decoders.
         "d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
LATENT = {"num_key_value_heads": 4, "head_dim": None, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 8, "v_head_dim": 12}
INDEXED = LATENT | {"num_hidden_layers": 3, "index_topk": 16, "index_n_heads": 4, "index_head_dim": 16}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
EMBEDS = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97, "num_kv_shared_layers": 0,
          "layer_types": ["sliding_attention", "full_attention"]}
OVERRIDES = {
    "axk1": LATENT, "axk2": INDEXED, "deepseek_v2": LATENT, "deepseek_v3": LATENT, "deepseek_v32": INDEXED,
    "deepseek_v4": INDEXED | {"num_key_value_heads": 1, "head_dim": 24},
    "glm4_moe_lite": LATENT, "glm_moe_dsa": INDEXED, "hy_v4": INDEXED, "kimi_linear": LATENT | {
        "linear_head_dim": 16, "linear_num_heads": 4, "layer_types": ["linear_attention", "full_attention"]},
    "longcat_flash": LATENT | {"num_layers": 1, "ffn_hidden_size": 96, "head_dim": 8},
    "minicpm3": LATENT, "sarvam_mla": LATENT, "youtu": LATENT,
    "bamba": MAMBA | {"attn_layer_indices": [1]}, "falcon_h1": MAMBA | {"mamba_d_ssm": 128},
    "granitemoehybrid": MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_d_state": 8,
              "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "nemotron_h": {"hybrid_override_pattern": "M*", "mamba_num_heads": 8, "mamba_head_dim": 16,
                   "ssm_state_size": 8, "n_groups": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]}, "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": LINEAR, "qwen3_5_text": LINEAR, "qwen3_5_moe_text": LINEAR,
    "gemma3n_text": EMBEDS | {"intermediate_size": [96, 96], "laurel_rank": 8, "altup_num_inputs": 2,
                              "activation_sparsity_pattern": [0.0, 0.0]},
    "gemma4_text": EMBEDS, "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "codegen": {"rotary_dim": 8}, "gptj": {"rotary_dim": 8}, "zaya": {"num_experts_per_tok": 1},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"]},
    "dbrx": {"n_heads": 4, "n_layers": 2, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
             "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}},
    "falcon": {"head_dim": None}, "cpmant": {"dim_head": 16, "dim_ff": 96},
    "ctrl": {"n_embd": 64, "dff": 96, "n_layer": 2, "n_head": 4},
}

INTERFACE = "does not use transformers' attention interface"
BOTH_SIDES = "attention to later tokens"
# Part of the refusal of kvbench-py dump; of several, one or another release of transformers gives each, and
# "" is a dump.
NOT_DUMPED = {
    **dict.fromkeys(
        """bailing_hybrid big_bird bloom cpmant falcon falcon_mamba gpt_neo gpt_neox_japanese lfm3 mamba
        mamba2 megatron-bert mvp openai-gpt recurrent_gemma rembert roformer rwkv trocr xglm xlm
        xlstm""".split(), (INTERFACE,)),
    **dict.fromkeys("codegen ctrl gptj nemotron".split(), (INTERFACE, "")),
    **dict.fromkeys(
        """bert bert-generation bigbird_pegasus camembert data2vec-text electra ernie roberta
        roberta-prelayernorm xlm-roberta xlm-roberta-xl""".split(), (BOTH_SIDES,)),
    **dict.fromkeys("axk2 deepseek_v32 glm_moe_dsa hy_v4".split(), ("with `indices`",)),
    **dict.fromkeys("diffllama dory hrm_text".split(), ("calls its attention more than once", INTERFACE)),
    **dict.fromkeys("gemma2 vaultgemma".split(), ("soft capping of logits",)),
    "doge": ("a bias on the logits",), "inkling_text": ("a bias by position",),
    "mpt": ("does not run",), "xmod": ("does not run",), "zamba2": ("does not run",),
}
CACHE = "does not run with transformers' DynamicCache"
# The same of kvbench-py score.
NOT_SCORED = {
    **dict.fromkeys("deepseek_v4 flint gpt_oss granite_swa granitemoe_swa mimo_v2_flash".split(),
                    ("an attention sink",)),
    **dict.fromkeys("bamba jamba".split(), ("does not go on from a prefix as it reads a whole prompt", CACHE)),
    **dict.fromkeys("""falcon_h1 granitemoehybrid lfm2 lfm2_moe qwen3_5_moe_text qwen3_5_text
                    qwen3_next""".split(), (CACHE, "")),
    "minimax": (CACHE,),
}
# Types that have no configuration of a few lines: images, sound, sizes that are not options.
NOT_SMALL = set("""
    blt cohere_compass_text dbrx dots3_note dots3_note_text emu3 gemma3 gemma3n gemma4 gemma4_assistant
    gemma4_unified gemma4_unified_assistant git got_ocr2 inkling2_loop_text inkling2_text llama4 mllama
    moshi moss_transcribe_diarize musicgen musicgen_melody phi4_multimodal prophetnet qwen3_5 qwen3_5_moe
    qwen4_exp qwen4_exp_text reformer roc_bert xlnet zamba""".split())
