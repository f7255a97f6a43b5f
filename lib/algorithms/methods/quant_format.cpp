// quant-format: every token stays, keys and values in the formats of serving engines
// (shared/kv_formats.hpp), each row coded alone.
// In: K [m, d], V [m, dv]. Out: m read-back pairs of weight 1. Time O(m (d + dv)), with
// rotate=hadamard O(m (d + dv) log d).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/shared/coded_keys.hpp"
#include "algorithms/shared/kv_formats.hpp"
#include "algorithms/shared/rotation.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench::method_quant_format {
namespace {

// Keys' or values' storage.
struct Storage {
  KvFormat format;
  Fp8Scale scale;
  Index turned;  ///< channels that a Hadamard matrix turns together; 1: none

  CodeBytes bytes(Index rows, Index width) const {
    return format_bytes(format, scale, rows, width);
  }
};

Storage storage(const Params& p, const char* type, Index turned) {
  const KvFormat format = kv_format(p.text(type));
  const bool turns =
      p.text("rotate") == "hadamard" && format != KvFormat::f16 && format != KvFormat::bf16;
  return {format,
          p.choice<Fp8Scale>(
              "fp8_scale",
              {{"one", Fp8Scale::one}, {"head", Fp8Scale::head}, {"token", Fp8Scale::token}}),
          turns ? turned : 1};
}

Storage keys(const Params& p, Index d) {
  return storage(p, "k_type", d & -d);
}

Storage values(const Params& p, Index dv) {
  return storage(p, "v_type", std::min<Index>(64, dv & -dv));
}

// Each row of `x` times the Hadamard matrix, `block` channels at a time.
void turn(Matrix& x, Index block) {
  if (block == 1) {
    return;
  }
  std::vector<double> part(static_cast<std::size_t>(block));
  for (Index i = 0; i < x.rows(); ++i) {
    for (Index c = 0; c < x.cols(); c += block) {
      float* at = x.row(i) + c;
      std::copy_n(at, block, part.begin());
      hadamard_transform(part);
      std::ranges::transform(part, at, [](double value) { return static_cast<float>(value); });
    }
  }
}

void store(Matrix& x, const Storage& s) {
  turn(x, s.turned);
  read_back(s.format, s.scale, x);
  turn(x, s.turned);
}

CodeBytes bytes_of(const EntryShape& shape, Index count, const Params& p) {
  return keys(p, shape.d).bytes(count, shape.d) + values(p, shape.dv).bytes(count, shape.dv);
}

CodedEntries code(const Task& task, const KeptEntries& e, const Params& p) {
  CodedEntries out;
  out.k = e.k;
  out.v = e.v;
  store(out.k, keys(p, e.k.cols()));
  store(out.v, values(p, e.v.cols()));
  out.bytes = bytes_of(shape_of(task.head), e.k.rows(), p);
  out.diag = {{"k_error", code_error(out.k, e.k)}, {"v_error", code_error(out.v, e.v)}};
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const Index needed = bytes_of(shape_of(task.head), task.count(), params).all();
  if (task.budget_bytes && needed > *task.budget_bytes) {
    refuse_budget(needed, *task.budget_bytes, "needs", fmt::format(" for {} tokens", task.count()));
  }
  return hold_coded(task.head, code(task, entries_of(task.head, task.tokens), params), task.tokens);
}

std::map<std::string, std::string> resolve(const Params& p, const LayerFacts& layer) {
  const auto check = [&](const char* type, Index width, const char* what) {
    const Index block = block_channels(kv_format(p.text(type)));
    if (width % block != 0) {
      throw InputError(fmt::format("{}: {}={} codes blocks of {} channels, got {} channels of {}",
                                   p.method(), type, p.text(type), block, width, what));
    }
  };
  check("k_type", layer.d, "keys");
  check("v_type", layer.dv, "values");
  return {};
}

std::vector<ParamSpec> format_params() {
  ParamSpec k_type = choice_param("k_type", kv_format_names(), "format of keys");
  ParamSpec v_type = choice_param("v_type", kv_format_names(), "format of values");
  k_type.fallback = v_type.fallback = "q8_0";
  return {k_type, v_type,
          choice_param("fp8_scale", {"one", "head", "token"},
                       "scale of fp8: 1; of all tokens of a KV head, their largest magnitude / "
                       "448; or of each token"),
          choice_param("rotate", {"none", "hadamard"},
                       "hadamard: turns keys and values by the normalised Hadamard matrix before "
                       "coding, in blocks of the largest power of two that divides the channels, "
                       "of values at most 64; f16 and bf16 are not turned")};
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "quant-format";
  info.family = Family::quantization;
  info.copies = 1;
  info.holds = Holds::placed;
  info.summary = "all tokens in the formats of llama.cpp and vLLM: q8_0, q4_0, fp8, nvfp4, ...";
  info.source =
      "ggml, quantize_row_*_ref; vLLM, --kv-cache-dtype; Open Compute Project, Microscaling "
      "Formats v1.0; NVIDIA, NVFP4";
  info.departures =
      "int8 rounds to the nearest even (vLLM truncates); mxfp4's ties go to the even code (gguf: "
      "the smaller); nvfp4 has a scale of the head (gguf: none); 16-bit numbers and scales are "
      "clamped to their range; turned entries are turned back, not the queries turned";
  info.params = format_params();
  info.grid = {"k_type=q8_0,q5_0,q4_0;v_type=q8_0,q5_0,q4_0", "k_type=nvfp4;v_type=nvfp4"};
  info.sizes = {};
  info.must_fit = true;
  info.resolve = resolve;
  Method method{info, compress};
  method.quantizer = Quantizer{format_params(),
                               [](const EntryShape& shape, Index count, const Params& p) {
                                 return bytes_of(shape, count, p).all();
                               },
                               code};
  return method;
}

}  // namespace kvbench::method_quant_format
