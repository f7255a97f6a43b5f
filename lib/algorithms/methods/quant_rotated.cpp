// quant-rotated: every token stays, keys and values as norms and codes of their rotated directions.
// [1] Zandieh et al., "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate",
//     2025, arXiv:2504.19874.
// [2] Zandieh et al., "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero
//     Overhead", 2024, arXiv:2406.03482.
// Codes: shared/rotated_codes.hpp, with one rotation for keys and one for values per layer and KV
// head, from the seed. A budget takes the most bits that fit, 8 to 1, keys and values alike.
// exempt=E keeps the first and last E replayed layers exact; the other layers' heads share the rest
// equally.
// In: K [m, d], V [m, dv]. Out: m read-back pairs of weight 1. Time O(m (d + dv) log d).
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "algorithms/shared/coded_keys.hpp"
#include "algorithms/shared/rotated_codes.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench::method_quant_rotated {
namespace {

struct Formats {
  RotatedFormat keys;
  RotatedFormat values;
};

// `bits` replaces auto.
Formats formats_of(const Params& p, int bits = 0) {
  const std::map<std::string_view, RotationKind> rotations = {
      {"hadamard", RotationKind::hadamard},
      {"orthogonal", RotationKind::orthogonal},
      {"none", RotationKind::none}};
  const auto bits_of = [&](const char* name) {
    return p.is_auto(name) ? bits : static_cast<int>(p.integer(name));
  };
  Formats out;
  out.keys = {bits_of("k_bits"), p.choice("rotation", rotations), p.text("center") == "mean",
              p.text("correct") == "norm", p.text("residual") == "sign"};
  out.values = out.keys;
  out.values.bits = bits_of("v_bits");
  out.values.signs = false;
  return out;
}

CodeBytes bytes_of(const EntryShape& shape, Index count, const Formats& f) {
  return rotated_bytes(f.keys, count, shape.d, shape.element_bytes) +
         rotated_bytes(f.values, count, shape.dv, shape.element_bytes);
}

// Codes `e` in place.
CodedEntries code_with(const Task& task, KeptEntries e, const ExactEntries& exact, const Params& p,
                       const Formats& f) {
  const DType dtype = task.head.dtype;
  const bool pre = codes_unrotated(p);
  CodedEntries out;
  out.k = pre ? unrotated(*task.rope, e.k, e.positions) : std::move(e.k);
  e.k = Matrix();
  out.k = rotated_codes(std::move(out.k), f.keys, dtype, task.rng.stream("key-rotation"),
                        task.rng.stream("sketch"));
  if (pre) {
    out.k = rotated(*task.rope, out.k, e.positions);
  }
  out.v = rotated_codes(std::move(e.v), f.values, dtype, task.rng.stream("value-rotation"), {});
  out.bytes = bytes_of(shape_of(task.head), out.k.rows(), f);
  out.diag = code_figures(out, exact, f.keys.bits, f.values.bits);
  out.diag.insert(out.diag.begin(), {{"k_bits", fmt::format("{}", f.keys.bits)},
                                     {"v_bits", fmt::format("{}", f.values.bits)}});
  return out;
}

// The bits of the parameters, otherwise the most that fit the budget.
Formats choose(const EntryShape& shape, Index count, std::optional<Index> budget, const Params& p) {
  if (!p.is_auto("k_bits")) {
    return formats_of(p);
  }
  given_budget(budget, "k_bits= and v_bits=");
  Index least = 0;
  for (int bits = 8; bits >= 1; --bits) {
    const Formats f = formats_of(p, bits);
    least = bytes_of(shape, count, f).all();
    if (least <= *budget) {
      return f;
    }
  }
  refuse_budget(least, *budget, "needs", fmt::format(" for {} tokens at 1 bit", count));
}

Survey survey(const Task& task, const Params& /*params*/) {
  return {task.count()};
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  std::set<Index> layers;
  Index left = 0;
  for (const Survey& s : surveys) {
    layers.insert(s.layer);
    left += s.bytes();
  }
  const auto exempt = std::min(static_cast<std::size_t>(params.integer("exempt")), layers.size());
  std::set<Index> whole(layers.begin(),
                        std::next(layers.begin(), static_cast<std::ptrdiff_t>(exempt)));
  whole.insert(std::prev(layers.end(), static_cast<std::ptrdiff_t>(exempt)), layers.end());
  Index needed = 0;
  Index coded = 0;
  for (const Survey& s : surveys) {
    const bool exact = whole.contains(s.layer);
    needed += exact ? s.middle * s.pair_bytes : 0;
    coded += exact ? 0 : 1;
  }
  if (needed > left) {
    refuse_budget(needed, left, "the exempt layers need");
  }
  std::vector<Share> out;
  for (const Survey& s : surveys) {
    const bool exact = whole.contains(s.layer);
    out.push_back(
        {exact ? s.middle : 0, nullptr, exact ? s.middle * s.pair_bytes : (left - needed) / coded});
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  std::optional<Index> budget = task.budget_bytes;
  if (params.integer("exempt") > 0) {
    const Share own = share_of(task, params, survey, share);
    if (own.tokens > 0) {
      return hold(task.tokens);
    }
    budget = own.bytes;
  }
  const KvHead& head = task.head;
  const Formats f = choose(shape_of(head), task.count(), budget, params);
  return hold_coded(
      head,
      code_with(task, entries_of(head, task.tokens), {head.k, head.v, task.tokens}, params, f),
      task.tokens);
}

void check(const Params& p) {
  if (p.is_auto("k_bits") != p.is_auto("v_bits")) {
    throw InputError(
        fmt::format("{}: got k_bits={} and v_bits={}, expected both, or neither with a budget",
                    p.method(), p.text("k_bits"), p.text("v_bits")));
  }
}

std::map<std::string, std::string> resolve(const Params& p, const LayerFacts& layer) {
  require_tables_for_keys(p, layer);
  if (p.text("rotation") == "hadamard" &&
      !(is_power_of_two(layer.d) && is_power_of_two(layer.dv))) {
    throw InputError(
        fmt::format("{}: rotation=hadamard needs widths that are powers of two, got {} for keys "
                    "and {} for values; expected rotation=orthogonal",
                    p.method(), layer.d, layer.dv));
  }
  return {};
}

std::vector<ParamSpec> format_params(const std::string& bits) {
  const auto bits_param = [&](const char* name, const char* doc) {
    return integer_param(name, bits, 1, 8, "bits", doc);
  };
  return {
      bits_param("k_bits", "bits per channel of a key; auto: the most that fit the budget"),
      bits_param("v_bits", "bits per channel of a value; auto: as k_bits"),
      choice_param("rotation", {"hadamard", "orthogonal", "none"},
                   "of directions before coding: random signs and the Hadamard matrix (widths must "
                   "be powers of two), a uniform random one, or none"),
      choice_param("center", {"none", "mean"},
                   "mean: subtracts the mean key and value before coding, stored once per KV head"),
      choice_param("correct", {"norm", "none"}, "norm: rescales a coded direction to unit length"),
      choice_param("residual", {"none", "sign"},
                   "sign: one of a key's bits is the sign of a Gaussian sketch of the rest (QJL), "
                   "which makes inner products unbiased"),
      coded_keys_param(),
  };
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "quant-rotated";
  info.family = Family::quantization;
  info.copies = 1;
  info.holds = Holds::placed;
  info.summary = "all tokens at 1 to 8 bits: norms, and codes of randomly rotated directions";
  info.source = "Zandieh et al., TurboQuant, 2025, arXiv:2504.19874; QJL, 2024, arXiv:2406.03482";
  info.departures =
      "a Hadamard rotation by default, as in engines (paper: a uniform one); coded directions are "
      "rescaled to unit length as in vLLM (correct=none: the paper's); values are coded as keys "
      "are (vLLM: uniform, per token); no exact tokens beside the protocol's; center and keys=pre "
      "are not in the paper";
  info.params = format_params("auto");
  info.params.push_back(integer_param("exempt", "0", 0, 1e6, "layers",
                                      "first and last replayed layers that stay exact; the others "
                                      "share the rest equally; larger leaves them fewer bits"));
  info.grid = {"center=none,mean", "keys=pre;center=none,mean", "rotation=none"};
  info.authors = "rotation=orthogonal;correct=none";
  info.sizes = {"k_bits", "v_bits"};
  info.joint_sizes = true;
  info.resolve = resolve;
  info.facts = [](const Params& p) {
    check(p);
    const bool exempts = p.values().contains("exempt") && p.integer("exempt") > 0;  // not after @
    return JobFacts{.rope = codes_unrotated(p),
                    .random = p.text("rotation") != "none" || p.text("residual") == "sign",
                    .scope = exempts ? Scope::layers : Scope::head};
  };
  Method method{info, compress, nullptr, survey, share};
  method.quantizer = Quantizer{format_params("4"),
                               [](const EntryShape& shape, Index count, const Params& p) {
                                 return bytes_of(shape, count, formats_of(p)).all();
                               },
                               [](const Task& task, const KeptEntries& e, const Params& p) {
                                 return code_with(task, e, {e.k, e.v}, p, formats_of(p));
                               },
                               codes_unrotated};
  return method;
}

}  // namespace kvbench::method_quant_rotated
