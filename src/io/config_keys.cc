// The settings of config.toml. A new one needs a default, a unit, a line that says who turns it, and an
// effect.
#include "io/config.h"

namespace longspan::io {
namespace {

using enum ConfigKind;

constexpr ConfigKey kKeys[] = {
    {"server.host", kString, "127.0.0.1", "", "Address to listen on; others than loopback need an api_key"},
    {"server.port", kInteger, "8000", "", "Port to listen on"},
    {"server.api_key", kString, "", "", "Key that clients must send; empty: none"},
    {"server.allow_no_key", kBool, "false", "", "Listen without a key on an address that others can reach"},
    {"server.served_model_name", kString, "", "",
     "Model names in the API, commas between them, the first for answers; empty: the directory's name"},
    {"server.any_model_name", kBool, "false", "", "Take every model name in a request for the first"},
    {"server.sse_keepalive_seconds", kNumber, "10", "s",
     "Silence after which a stream gets a comment, so that no proxy gives up; 0: never"},
    {"server.request_timeout_seconds", kNumber, "0", "s",
     "A generation that takes longer is ended with an error; 0: no limit"},
    {"server.shutdown_timeout_seconds", kNumber, "30", "s",
     "What running requests get to finish after SIGTERM"},
    {"server.log_requests", kBool, "true", "", "A line for each request that ended, without its text"},
    {"server.metrics_compat", kString, "none", "",
     "none, or vllm: /metrics has vllm:* names for dashboards too"},
    {"server.profile_dir", kString, "", "",
     "Folder that `longspan profile start` may make profiles in; empty: no profiles"},

    {"model.name", kString, "", "", "A note for people: which model this file is for"},
    {"model.model_path", kString, "", "", "Model directory"},
    {"model.dtype", kString, "auto", "",
     "auto (the checkpoint's, or what the device is fast at), bfloat16, float16 (no cpu) or float32"},
    {"model.quantization", kString, "auto", "",
     "auto (as the tensors say), or the method the checkpoint must have"},
    {"model.random_weights", kString, "", "",
     "A seed: draw the weights from it, for shapes and speed without a file"},
    {"model.tensor_parallel_size", kInteger, "1", "ranks", "Devices that share the model"},
    {"model.max_model_len", kInteger, "0", "tokens", "Prompt and answer; 0: as the model was made for"},
    {"model.gpu_memory_utilization", kNumber, "0", "share",
     "Of the free memory, for weights, workspace and cache; 0: half of what the weights leave"},

    {"attention.backend", kString, "auto", "",
     "auto, vendor_paged_attention (the vendor's prefill behind its gate) or unified"},
    {"attention.query_heads", kInteger, "0", "heads",
     "Expectation: refuse a model with another number; 0: any"},
    {"attention.kv_heads", kInteger, "0", "heads", "Expectation: refuse a model with another number; 0: any"},
    {"attention.head_size", kInteger, "0", "dims", "Expectation and gate of the vendor's prefill; 0: 256"},
    {"attention.gqa_ratio", kInteger, "0", "query heads a KV head",
     "Expectation and gate of the vendor's prefill; 0: 6"},
    {"attention.causal", kBool, "true", "", "Expectation: models here are causal"},
    {"attention.sliding_window", kBool, "false", "", "Expectation: models here have none"},
    {"attention.alibi", kBool, "false", "", "Expectation: models here have none"},
    {"attention.softcap", kBool, "false", "", "Expectation: models here have none"},
    {"attention.attention_backend", kString, "auto", "", "auto, hip_gfx906 (own kernels, wave64) or unified"},
    {"attention.hip_attention_head_size", kInteger, "0", "dims", "Expectation; 0: any"},
    {"attention.hip_attention_gqa", kInteger, "0", "query heads a KV head", "Expectation; 0: any"},
    {"attention.hip_attention_kv_dtype", kString, "auto", "",
     "dtype of the KV cache: auto (the model's) or fp8"},
    {"attention.hip_attention_softmax_segments", kInteger, "0", "segments",
     "Parts of one decode attention on a device, at most, up to 256; 0: as many as fill it"},
    {"attention.hip_attention_fallback", kString, "unified", "",
     "Path where the gate is closed: unified (triton is taken as that)"},

    {"cache.enable_prefix_caching", kBool, "false", "", "Reuse what equal prompt beginnings computed"},
    {"cache.kv_cache_dtype", kString, "auto", "", "dtype of K and V: auto (the products') or fp8_e4m3 (fp8)"},
    {"cache.layout", kString, "unified", "",
     "unified (one pool of pages) or split (KV pages and state slots)"},
    {"cache.alignment_tokens", kInteger, "0", "tokens",
     "Page alignment; 0: as the enabled attention paths ask (16 or 64)"},
    {"cache.block_size", kInteger, "0", "tokens", "Taken as the alignment when it is larger"},
    {"cache.state_chunk", kInteger, "256", "tokens",
     "With prefix caching a unified page is a multiple of it"},
    {"cache.min_page_tokens", kInteger, "0", "tokens", "Raises the page"},
    {"cache.target_page_tokens", kInteger, "0", "tokens",
     "Expectation: refuse to start with another page; 0: any"},
    {"cache.memory", kString, "", "size",
     "Memory of the cache, as 4GiB; empty: what max_num_seqs need, as far as there is memory"},

    {"cache.swap_memory", kString, "", "size",
     "Host memory for preempted sequences, as 1GiB; 0: compute them again; empty: a quarter of a small "
     "cache"},
    {"cache.reuse_decoded", kBool, "false", "",
     "With prefix caching: reuse answers too; less work at the next turn, but not the bits of a cold run"},
    {"cache.min_checkpoint_tokens", kInteger, "512", "tokens",
     "With prefix caching: states are kept at least this far apart"},
    {"cache.pinned_prompt", kString, "", "file",
     "With prefix caching: a system message that is read at the start and never leaves the cache"},

    {"dispatch.vendor_prefill", kBool, "true", "",
     "The vendor's (or the fast tiled) prefill, behind its gate"},
    {"dispatch.vendor_prefill_min_q", kInteger, "2", "tokens", "Shortest chunk that takes it"},
    {"dispatch.vendor_prefill_max_q", kInteger, "4096", "tokens", "Longest chunk that takes it"},
    {"dispatch.vendor_prefill_require_single_seq", kBool, "true", "", "Only for one prompt at a time"},
    {"dispatch.vendor_prefill_page_multiple", kInteger, "64", "tokens", "The page must be a multiple of it"},
    {"dispatch.vendor_prefill_dtype", kString, "bfloat16", "", "The only dtype that takes it"},
    {"dispatch.decode_path", kString, "page_contiguous", "", "page_contiguous or unified; same bits"},
    {"dispatch.decode_inputs", kString, "steady", "",
     "steady (one sequence that decodes: only what changes is written) or general; same numbers"},

    {"prefill.enable_dequant_prefill", kBool, "true", "",
     "Large products of packed weights unpack them once"},
    {"prefill.dequant_workspace_qkv_mib", kInteger, "0", "MiB",
     "Bound of the one workspace for that; the largest of the three counts; 0: as needed"},
    {"prefill.dequant_workspace_gate_up_mib", kInteger, "0", "MiB",
     "Bound of the one workspace for that; the largest of the three counts; 0: as needed"},
    {"prefill.dequant_workspace_down_mib", kInteger, "0", "MiB",
     "Bound of the one workspace for that; the largest of the three counts; 0: as needed"},

    {"graph.enforce_eager", kBool, "false", "", "No device graphs"},
    {"graph.hip_graph_mode", kString, "auto", "",
     "none, FULL_DECODE_ONLY (decode steps are recorded and replayed) or auto: that, where a device records"},
    {"graph.chunked_prefill", kBool, "true", "",
     "Prompts run in chunks of max_num_batched_tokens; always on"},
    {"graph.max_num_batched_tokens", kInteger, "4096", "tokens", "Tokens of one step"},

    {"engine.device", kString, "cpu", "",
     "cpu, reference (the slow oracle), or this build's card: cuda, hip or emulator, :N for the Nth"},
    {"engine.threads", kInteger, "0", "threads", "Of the cpu device; 0: all this process may use"},
    {"engine.memory", kString, "", "size",
     "Budget of weights, workspace and cache, as 64GiB; empty: by gpu_memory_utilization"},
    {"engine.max_num_seqs", kInteger, "16", "sequences", "Sequences of one step"},
    {"engine.max_waiting", kInteger, "256", "requests",
     "Requests that may wait beyond max_num_seqs; more are answered 503"},
    {"engine.max_decode_stall_ms", kNumber, "500", "ms",
     "Prompt chunks shrink so that running streams wait no longer; 0: no limit"},
    {"engine.rpc_timeout_seconds", kNumber, "300", "s", "A step that takes longer turns /health red"},
};

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

}  // namespace longspan::io
