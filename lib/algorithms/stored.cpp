#include "algorithms/stored.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "algorithms/nested_methods.hpp"
#include "algorithms/shared/coded_keys.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

constexpr const char* kFit = "fit";

bool is_size(const Method& a, const std::string& name) {
  return std::ranges::find(a.info.sizes, name) != a.info.sizes.end();
}

bool fits_after(const Method& a, const Params& params) {
  return a.info.fits_to_keys && params.text(kFit) == "after";
}

// A's parameters, taken from the whole's, with sizes.
Params stored_part(const Method& a, const Params& params) {
  std::map<std::string, std::string> sizes;
  for (const std::string& name : a.info.sizes) {
    sizes[name] = params.text(name);
  }
  return part_params(a, params).with(sizes);
}

WeightBytes weights_of(const Method& a, const Params& params) {
  return a.info.facts(stored_part(a, params)).weights;
}

Index bytes_with(const WeightBytes& w, const Method& q, const EntryShape& shape, Index count,
                 const Params& params) {
  return q.quantizer->bytes(shape, count, params) + (count > 0 ? w.once + w.each * count : 0);
}

// A's entries, by position if all have one, otherwise held tokens first.
struct Holdings {
  KeptEntries entries;
  std::vector<float> weights;  // empty: all 1
};

Holdings holdings_of(const KvHead& head, const Compressed& kept) {
  const std::size_t held = kept.held.tokens.size();
  const auto count = static_cast<Index>(held) + kept.made.k.rows();
  const bool placed = kept.made.k.rows() == 0 || !kept.made.positions.empty();
  std::vector<Index> positions = kept.held.tokens;
  positions.insert(positions.end(), kept.made.positions.begin(), kept.made.positions.end());
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (placed) {
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return positions[i]; });
  }
  Holdings out;
  out.entries.k = Matrix(count, head.d());
  out.entries.v = Matrix(count, head.dv());
  bool weighted = false;
  for (Index row = 0; row < count; ++row) {
    const std::size_t i = order[row];
    const bool own = i < held;
    const Index from = own ? kept.held.tokens[i] : static_cast<Index>(i - held);
    std::copy_n((own ? head.k : kept.made.k).row(from), head.d(), out.entries.k.row(row));
    std::copy_n((own ? head.v : kept.made.v).row(from), head.dv(), out.entries.v.row(row));
    if (placed) {
      out.entries.positions.push_back(positions[i]);
    }
    const float w = own                         ? kept.held.weight(i)
                    : kept.made.weights.empty() ? 1.0F
                                                : kept.made.weights[from];
    weighted = weighted || w != 1.0F;
    out.weights.push_back(w);
  }
  if (!weighted) {
    out.weights.clear();
  }
  return out;
}

// Keys as stored by Q, which codes them in order of position.
Matrix coded_keys(const Method& q, const Task& task, const Params& params, const Matrix& keys,
                  std::span<const Index> positions) {
  std::vector<Index> order(positions.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::ranges::stable_sort(order, {}, [&](Index i) { return positions[i]; });
  KeptEntries sorted;
  sorted.k = Matrix(keys.rows(), keys.cols());
  sorted.v = Matrix(keys.rows(), task.head.dv());
  for (Index i = 0; i < keys.rows(); ++i) {
    std::copy_n(keys.row(order[i]), keys.cols(), sorted.k.row(i));
    sorted.positions.push_back(positions[order[i]]);
  }
  const Matrix coded = q.quantizer->code(task, sorted, params).k;
  Matrix out(keys.rows(), keys.cols());
  for (Index i = 0; i < keys.rows(); ++i) {
    std::copy_n(coded.row(i), keys.cols(), out.row(order[i]));
  }
  return out;
}

// A's sizes, Q's format, and `fit`.
std::vector<ParamSpec> own_params(const Method& a, const Method& q) {
  std::vector<ParamSpec> out;
  for (const ParamSpec& spec : a.info.params) {
    if (is_size(a, spec.name)) {
      out.push_back(spec);
    }
  }
  out.insert(out.end(), q.quantizer->params.begin(), q.quantizer->params.end());
  if (a.info.fits_to_keys) {
    out.push_back(choice_param(kFit, {"before", "after"},
                               "fit weights and values to the keys as they are; or to the keys as "
                               "they will be stored"));
  }
  return out;
}

// Throws InputError if A's entries cannot be stored with these parameters.
void check_stored(const Method& a, const Method& q, const Params& params) {
  if (a.info.facts(stored_part(a, params)).own_denominator) {
    throw InputError(
        fmt::format("{}: cannot store a separate denominator, expected a method with one "
                    "set ({}.denominator=shared)",
                    params.method(), a.info.name));
  }
  if (q.quantizer->needs_positions != nullptr && q.quantizer->needs_positions(params) &&
      a.info.holds == Holds::unplaced) {
    throw InputError(
        fmt::format("{}: keys=pre needs positions, but entries made by {} have none, "
                    "expected keys=post",
                    params.method(), a.info.name));
  }
}

// The largest count of tokens, at most `most`, that fits `budget` bytes. Throws Infeasible if one
// does not fit and `most` >= 1.
Index stored_tokens(const Method& a, const Method& q, const EntryShape& shape, Index budget,
                    Index most, const Params& params) {
  const WeightBytes w = weights_of(a, params);
  const auto bytes_of = [&](Index count) { return bytes_with(w, q, shape, count, params); };
  const Index least = bytes_of(1);
  if (most > 0 && least > budget) {
    refuse_budget(least, budget, "needs", " for one token");
  }
  Index low = 0;
  Index high = most;  // the answer is within [low, high]
  while (low < high) {
    const Index middle = low + (high - low + 1) / 2;
    if (bytes_of(middle) <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// A's task for a survey: its budget is as many pairs as stored tokens fit the task's budget.
Task surveyed_part(const Method& a, const Method& q, const Task& task, const Params& params) {
  Task out = task;
  out.rng = task.rng.part(a.info.name);
  if (task.budget_bytes) {
    const EntryShape shape = shape_of(task.head);
    out.budget_bytes =
        shape.pair_bytes() * stored_tokens(a, q, shape, *task.budget_bytes, task.count(), params);
  }
  return out;
}

// A's shares, lowered until their stored tokens fit the sum of the heads' budgets: each round takes
// one token from every survey.
std::vector<Share> stored_shares(const Method& a, const Method& q, std::span<const Survey> heads,
                                 const Params& params) {
  const Params own = stored_part(a, params);
  const WeightBytes w = weights_of(a, params);
  Index limit = 0;
  bool limited = true;
  std::vector<Survey> surveys(heads.begin(), heads.end());
  for (Survey& s : surveys) {
    limited = limited && s.budget_bytes.has_value();
    if (s.budget_bytes) {
      limit += *s.budget_bytes;
      s.budget_bytes =
          s.pair_bytes * stored_tokens(a, q, s.shape, *s.budget_bytes, s.middle, params);
    }
  }
  while (true) {
    std::vector<Share> out = a.share(surveys, own);
    Index needed = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i].bytes = bytes_with(w, q, surveys[i].shape, out[i].tokens, params);
      needed += *out[i].bytes;
    }
    if (!limited || needed <= limit) {
      return out;
    }
    bool lowered = false;
    for (Survey& s : surveys) {
      if (s.tokens > 1) {
        --s.tokens;
        s.budget_bytes = s.tokens * s.pair_bytes;
        lowered = true;
      }
    }
    if (!lowered) {
      refuse_budget(needed, limit, "heads with a shared budget need", " for one token each");
    }
  }
}

// Runs A, then codes what it holds.
Compressed store(const Method& a, const Method& q, const Task& task, const Params& params) {
  const Params own = stored_part(a, params);
  const EntryShape shape = shape_of(task.head);
  Task first = task;
  first.rng = task.rng.part(a.info.name);
  const WeightBytes w = weights_of(a, params);
  const Index each = shape.pair_bytes() + w.each;
  Share share;
  if (task.share != nullptr) {
    share = *task.share;
    share.bytes.reset();
    // In pairs, with the bytes of A's weights added.
    share.tokens = (share.tokens * each + w.once + shape.pair_bytes() - 1) / shape.pair_bytes();
    first.share = &share;
  } else if (task.budget_bytes) {
    first.budget_bytes =
        w.once + each * stored_tokens(a, q, shape, *task.budget_bytes, task.count(), params);
  }
  Task second = task;
  second.rng = task.rng.part(q.info.name);
  const CodeKeys coder = [&](const Matrix& keys, std::span<const Index> positions) {
    return coded_keys(q, second, params, keys, positions);
  };
  first.code_keys = fits_after(a, params) ? &coder : nullptr;

  Compressed kept = a.compress(first, own);
  if (kept.denominator || kept.payload_bytes) {
    throw std::logic_error(fmt::format(
        "{}: has a denominator or payload of its own, expected it to set not_quantizable",
        a.info.name));
  }
  Compressed out;
  out.payload_bytes = 0;
  out.aux_bytes = kept.aux_bytes;
  out.transient_bytes = kept.transient_bytes;
  out.degenerate = kept.degenerate;
  out.quantized = static_cast<Index>(kept.held.tokens.size()) + kept.quantized;
  add_part_diag(a, kept.diag, out.diag);
  Holdings holdings = holdings_of(task.head, kept);
  if (holdings.entries.k.rows() > 0) {
    CodedEntries coded = q.quantizer->code(second, holdings.entries, params);
    out.payload_bytes = coded.bytes.codes;
    out.aux_bytes += coded.bytes.scales;
    out.made = {std::move(coded.k), std::move(coded.v), std::move(holdings.weights),
                std::move(holdings.entries.positions)};
    out.diag.insert(out.diag.end(), coded.diag.begin(), coded.diag.end());
  }
  out.counted = std::move(kept.held.tokens);
  return out;
}

class CodedReads : public ReadIndex {
 public:
  CodedReads(const Method& r, const Method& q, const Task& task, const Params& params)
      : r_(r), coded_(code(q, task, params)) {
    Task own = task;
    own.rng = task.rng.part(r.info.name);
    own.bytes_per_token = coded_token_bytes(coded_);
    index_ = r.open_reads(own, stored_part(r, params));
  }

  Reads search() override {
    Reads out = index_->search();
    Figures diag;
    add_part_diag(r_, out.diag, diag);
    diag.insert(diag.end(), coded_.diag.begin(), coded_.diag.end());
    out.diag = std::move(diag);
    out.coded = std::move(coded_);
    return out;
  }

 private:
  static CodedEntries code(const Method& q, const Task& task, const Params& params) {
    Task whole = task;
    whole.rng = task.rng.part(q.info.name);
    return q.quantizer->code(whole, entries_of(task.head, task.tokens), params);
  }

  const Method& r_;
  CodedEntries coded_;
  std::unique_ptr<ReadIndex> index_;
};

// Throws InputError unless Q can code what A holds or reads.
void check_parts(const Method& a, const Method& q) {
  const std::string& name = a.info.name;
  if (!q.quantizer) {
    throw InputError(
        fmt::format("{}@{}: {} is not a quantizer, expected quant-kivi, quant-rotated, "
                    "quant-format or think behind @",
                    name, q.info.name, q.info.name));
  }
  const std::string& reason = a.info.not_quantizable;
  if (a.compress == nullptr && a.open_reads != nullptr) {
    if (!reason.empty() || a.info.sizes.empty()) {
      throw InputError(
          fmt::format("{0}@{1}: {0} reads one set for all queries, expected a method "
                      "that searches, such as topk@{1}",
                      name, q.info.name));
    }
    return;
  }
  const std::string why = a.compress == nullptr                   ? "it does not run under prefill"
                          : !reason.empty()                       ? reason
                          : a.info.family == Family::quantization ? "it is a quantizer itself"
                                                                  : "";
  if (!why.empty()) {
    throw InputError(
        fmt::format("{}@{}: {} cannot be stored in fewer bits ({}), expected a method that keeps "
                    "or makes tokens",
                    name, q.info.name, name, why));
  }
}

}  // namespace

Index coded_token_bytes(const CodedEntries& coded) {
  return (coded.bytes.all() + coded.k.rows() - 1) / coded.k.rows();
}

Method stored(const Method& a, const Method& q) {
  check_parts(a, q);
  const bool reads = a.compress == nullptr;
  Method out;
  out.joint = '@';
  out.components = {{&a, part_prefix(a), stored_part},
                    {&q, "", [](const Method&, const Params& whole) { return whole; }}};
  MethodInfo& info = out.info;
  info.name = fmt::format("{}@{}", a.info.name, q.info.name);
  info.summary =
      reads ? fmt::format("reads of {} of a cache quantized by {}", a.info.name, q.info.name)
            : fmt::format("entries of {}, quantized by {}", a.info.name, q.info.name);
  info.source =
      fmt::format("{}: {}; {}: {}", a.info.name, a.info.source, q.info.name, q.info.source);
  info.params = own_params(a, q);
  info.sizes = a.info.sizes;
  info.joint_sizes = a.info.joint_sizes;
  info.copies = 2;  // what A holds, and the same decoded
  info.facts = [&a, &q](const Params& params) {
    check_stored(a, q, params);
    return JobFacts{.scope = a.info.facts(stored_part(a, params)).scope};
  };
  if (reads) {
    out.open_reads = [&a, &q](const Task& task, const Params& params) {
      return std::make_unique<CodedReads>(a, q, task, params);
    };
    return out;
  }
  out.compress = [&a, &q](const Task& task, const Params& params) {
    return store(a, q, task, params);
  };
  out.survey = [&a, &q](const Task& task, const Params& params) {
    Survey survey = a.survey(surveyed_part(a, q, task, params), stored_part(a, params));
    survey.budget_bytes = task.budget_bytes;
    return survey;
  };
  out.share = [&a, &q](std::span<const Survey> surveys, const Params& params) {
    return stored_shares(a, q, surveys, params);
  };
  return out;
}

}  // namespace kvbench
