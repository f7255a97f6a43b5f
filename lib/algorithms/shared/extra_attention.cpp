#include "algorithms/shared/extra_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "attention/inner_products.hpp"
#include "core/error.hpp"
#include "core/math.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr const char* kPast = "past";
constexpr Index kRowsAtOnce = 48;  // queries with logits in memory

template <class All>
const typename All::value_type& require_named(std::string_view method, const char* what,
                                              const All& all, const std::string& name) {
  const auto* found = find_named(all, name);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const auto& one : all) {
      names.push_back(one.name);
    }
    throw InputError(
        fmt::format("{}: the layer has no {} '{}', has: {}", method, what, name,
                    names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  return *found;
}

// Scores must not depend on evaluated tokens.
void check_prefix(std::string_view method, const std::string& what, const LayerFacts& layer,
                  const std::optional<Index>& prefix) {
  if (!prefix) {
    throw InputError(fmt::format(
        "{}: {} has no attribute prefix, expected the number of tokens that the model had read",
        method, what));
  }
  if (*prefix > layer.prompt()) {
    throw InputError(
        fmt::format("{}: {} had read {} tokens (attribute prefix), expected at most n - "
                    "queries = {}: scores must not depend on evaluated tokens",
                    method, what, *prefix, layer.prompt()));
  }
}

// Transposed keys [t + m, d]: the tokens', then the segment's.
MatrixD joined_keys(const KvHead& head, const ExtraSegment& segment,
                    std::span<const Index> tokens) {
  const auto count = static_cast<Index>(tokens.size());
  MatrixD out(head.d(), count + segment.k.rows());
  for (Index i = 0; i < out.cols(); ++i) {
    const float* key = i < count ? head.k.row(tokens[i]) : segment.k.row(i - count);
    for (Index t = 0; t < out.rows(); ++t) {
      out.row(t)[i] = static_cast<double>(key[t]);
    }
  }
  return out;
}

// x [n] becomes its softmax with one more logit `sink` (-inf: none).
void normalise(double* x, Index n, double sink) {
  double largest = std::max(x[0], sink);
  for (Index i = 1; i < n; ++i) {
    largest = std::max(largest, x[i]);
  }
  for (Index i = 0; i < n; ++i) {
    x[i] = exp_shared(x[i] - largest);
  }
  const double mass = sum(x, n) + (std::isinf(sink) ? 0.0 : exp_shared(sink - largest));
  for (Index i = 0; i < n; ++i) {
    x[i] /= mass;
  }
}

}  // namespace

ParamSpec ref_param() {
  return name_param("ref", kPast,
                    "queries that score: past, the prompt's own; or a set of extra queries of the "
                    "trace, by its name (docs/trace_format.md)");
}

std::vector<std::string> ref_sets(const Params& params) {
  const auto ref = params.values().find("ref");
  return ref == params.values().end() || ref->second == kPast
             ? std::vector<std::string>()
             : std::vector<std::string>{ref->second};
}

Index ref_bytes(const Params& params, const LayerFacts& layer, Index /*kept*/) {
  return ref_sets(params).empty() ? 0 : 8 * layer.n * (layer.d + layer.dv);
}

std::map<std::string, std::string> resolve_ref(const Params& params, const LayerFacts& layer) {
  for (const std::string& name : ref_sets(params)) {
    if (layer.stream) {
      throw InputError(
          fmt::format("{}: parameter ref: got '{}', expected past: sets of extra queries "
                      "score under prefill only",
                      params.method(), name));
    }
    require_extra(params.method(), layer, name);
  }
  return {};
}

const ExtraSetInfo& require_extra(std::string_view method, const LayerFacts& layer,
                                  const std::string& name) {
  if (layer.window > 0) {
    throw InputError(
        fmt::format("{}: sets of extra queries do not support the layer's window of {} tokens, "
                    "expected --layers without it",
                    method, layer.window));
  }
  const ExtraSetInfo& out = require_named(method, "extra queries", layer.extra, name);
  for (std::size_t i = 0; i < out.segments.size(); ++i) {
    check_prefix(method, fmt::format("segment {} of the extra queries '{}'", i, name), layer,
                 out.segments[i].prefix);
  }
  return out;
}

const ScoresInfo& require_scores(std::string_view method, const LayerFacts& layer,
                                 const std::string& name) {
  const ScoresInfo& out = require_named(method, "scores", layer.scores, name);
  check_prefix(method, fmt::format("the program of the scores '{}'", name), layer, out.prefix);
  return out;
}

const ExtraSet& extra_set(const Task& task, const std::string& name) {
  const ExtraSet* found = find_named(task.extra, name);
  if (found == nullptr) {
    throw std::logic_error(fmt::format("extra queries '{}' are not in the task", name));
  }
  return *found;
}

void each_extra_weight(const KvHead& head, const ExtraSegment& segment,
                       std::span<const Index> tokens, Range queries, const VisitWeights& visit) {
  const auto count = static_cast<Index>(tokens.size());
  const MatrixD keys_t = joined_keys(head, segment, tokens);
  MatrixD block, logits;
  for (std::size_t g = 0; g < segment.q.size(); ++g) {
    for (Index begin = queries.begin; begin < queries.end; begin += kRowsAtOnce) {
      const Index rows = std::min(kRowsAtOnce, queries.end - begin);
      block.resize(rows, head.d());
      for (Index r = 0; r < rows; ++r) {
        for (Index t = 0; t < head.d(); ++t) {
          block.row(r)[t] = head.scale * static_cast<double>(segment.q[g].row(begin + r)[t]);
        }
      }
      inner_products(block, keys_t, logits);
      for (Index r = 0; r < rows; ++r) {
        // Keys after the query are masked.
        normalise(logits.row(r), count + begin + r + 1, sink_logit(head, static_cast<Index>(g)));
        visit(static_cast<Index>(g), begin + r, {logits.row(r), tokens.size()});
      }
    }
  }
}

std::vector<Range> last_queries(const ExtraSet& set, Index count) {
  std::vector<Range> out(set.segments.size());
  for (std::size_t i = out.size(); i-- > 0;) {
    const Index m = set.segments[i].k.rows();
    out[i] = {m - std::min(m, count), m};
    count -= out[i].size();
  }
  return out;
}

const std::vector<std::vector<double>>& extra_sums(const Task& task, const std::string& set,
                                                   Index count) {
  return task.scores->cached(fmt::format("sums {} {}", set, count), [&] {
    const KvHead& head = task.head;
    const ExtraSet& extra = extra_set(task, set);
    std::vector<std::vector<double>> out(head.q.size(),
                                         std::vector<double>(static_cast<std::size_t>(head.n())));
    const std::vector<Range> queries = last_queries(extra, count);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      std::vector<Index> tokens(
          static_cast<std::size_t>(extra.segments[i].info.prefix.value_or(0)));
      std::iota(tokens.begin(), tokens.end(), Index{0});
      each_extra_weight(head, extra.segments[i], tokens, queries[i],
                        [&](Index g, Index, std::span<const double> w) {
                          for (std::size_t t = 0; t < w.size(); ++t) {
                            out[static_cast<std::size_t>(g)][t] += w[t];
                          }
                        });
    }
    return out;
  });
}

}  // namespace kvbench
