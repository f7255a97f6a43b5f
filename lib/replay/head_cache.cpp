#include "replay/head_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "core/archive.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "replay/windows.hpp"

namespace kvbench {
namespace {

bool all_ones(const std::vector<float>& weights) {
  return std::all_of(weights.begin(), weights.end(), [](float w) { return w == 1.0F; });
}

// Logarithms; empty if all weights are 1.
std::vector<float> logs(const std::vector<float>& weights) {
  std::vector<float> out;
  if (!all_ones(weights)) {
    for (const float w : weights) {
      out.push_back(static_cast<float>(std::log(static_cast<double>(w))));
    }
  }
  return out;
}

float weight_of(const std::vector<float>& log_weights, Index i) {
  return log_weights.empty() ? 1.0F
                             : static_cast<float>(std::exp(static_cast<double>(log_weights[i])));
}

std::vector<float> weights_of(const HeldTokens& held, const MadeTokens& made) {
  std::vector<float> out;
  for (std::size_t i = 0; i < held.tokens.size(); ++i) {
    out.push_back(held.weight(i));
  }
  const auto rows = static_cast<std::size_t>(made.k.rows());
  for (std::size_t i = 0; i < rows; ++i) {
    out.push_back(made.weights.empty() ? 1.0F : made.weights[i]);
  }
  return out;
}

// Rows `tokens` of `from`, then the rows of `made`.
Matrix rows_of(const Matrix& from, const std::vector<Index>& tokens, const Matrix& made = {}) {
  const auto held = static_cast<Index>(tokens.size());
  Matrix out(held + made.rows(), from.cols());
  for (Index i = 0; i < held; ++i) {
    std::copy_n(from.row(tokens[i]), from.cols(), out.row(i));
  }
  std::copy_n(made.data(), made.rows() * made.cols(), out.row(held));
  return out;
}

// Bytes of the weights: none if all are 1, those of one if all are equal.
Index weight_bytes(const std::vector<float>& log_weights) {
  const bool equal = std::adjacent_find(log_weights.begin(), log_weights.end(),
                                        std::not_equal_to<>()) == log_weights.end();
  if (!equal) {
    return 4 * static_cast<Index>(log_weights.size());
  }
  return log_weights.empty() || log_weights.front() == 0.0F ? 0 : 4;
}

Index counted_payload(const HeadCache& c, Index d, Index dv, DType dtype) {
  const Index keys_only = c.denominator && c.denominator->k ? c.denominator->k->rows() : 0;
  return (c.rows() * (d + dv) + keys_only * d) * bytes_per_element(dtype);
}

[[noreturn]] void reject(const std::string& where, const std::string& what) {
  throw InputError(where + ": " + what);
}

// Throws InputError unless all elements are numbers of the trace's dtype.
void check_elements(const Matrix& m, DType dtype, const char* name, const std::string& where) {
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index c = 0; c < m.cols(); ++c) {
      if (const float x = m.row(i)[c]; round_to(dtype, x) != x) {
        reject(where, fmt::format("{}: row {}, channel {}: {} is no {} number, as its bytes are "
                                  "counted; expected it rounded, or payload_bytes",
                                  name, i, c, x, kvbench::name(dtype)));
      }
    }
  }
}

void check_token(const HeadCache& c, Index row, const KvHead& head, const std::string& where) {
  const Index t = c.token[row];
  const auto check = [&](const char* name, const Matrix& got, const Matrix& trace) {
    for (Index j = 0; j < trace.cols(); ++j) {
      if (!(got.row(row)[j] == trace.row(t)[j])) {
        reject(where, fmt::format("{}: row {} is marked as token {}, but channel {} is {}, "
                                  "expected the trace's {}; made entries have token -1",
                                  name, row, t, j, got.row(row)[j], trace.row(t)[j]));
      }
    }
  };
  check("k", c.k, head.k);
  check("v", c.v, head.v);
}

// Positions of the made entries, if they are tokens in fewer bits: all of the middle that are not
// `held` (ascending), or `counted`. Empty if the entry does not say them.
std::vector<Index> quantized_positions(const HeadCache& c, const std::vector<Index>& held,
                                       std::span<const Index> middle) {
  const Index made = c.rows() - static_cast<Index>(held.size());
  std::vector<Index> out;
  if (c.rows() == static_cast<Index>(middle.size())) {
    std::ranges::set_difference(middle, held, std::back_inserter(out));
  } else {
    out.assign(c.counted.begin(), c.counted.end());
  }
  const bool good = !c.denominator && c.quantized == made && static_cast<Index>(out.size()) == made;
  return good ? out : std::vector<Index>{};
}

}  // namespace

template <MaybeConst<CacheDenominator> Cache, class Visit>
void each_member(Cache& c, const Visit& visit) {
  visit(c.k);
  visit(c.log_weight);
}

template <MaybeConst<HeadCache> Cache, class Visit>
void each_member(Cache& c, const Visit& visit) {
  visit(c.k);
  visit(c.v);
  visit(c.log_weight);
  visit(c.token);
  visit(c.denominator);
  visit(c.aux_bytes);
  visit(c.payload_bytes);
  visit(c.quantized);
  visit(c.counted);
  visit(c.transient_bytes);
  visit(c.compress_ms);
  visit(c.scoring_queries);
  visit(c.infeasible);
  visit(c.failed);
  visit(c.degenerate);
  visit(c.diag);
}

HeadCache cache_of(const KvHead& head, const Compressed& r) {
  HeadCache out;
  out.k = rows_of(head.k, r.held.tokens, r.made.k);
  out.v = rows_of(head.v, r.held.tokens, r.made.v);
  out.log_weight = logs(weights_of(r.held, r.made));
  out.token.assign(out.rows(), -1);
  std::copy(r.held.tokens.begin(), r.held.tokens.end(), out.token.begin());
  if (r.denominator) {
    const Denominator& from = *r.denominator;
    CacheDenominator& den = out.denominator.emplace();
    const std::vector<float> weights = weights_of(from.held, from.made);
    den.log_weight = logs(weights);
    // Without made entries, the file need not repeat the keys.
    const bool repeats = from.same_keys && from.made.k.rows() == 0 && r.made.k.rows() == 0;
    if (repeats) {
      den.log_weight.resize(weights.size(), 0.0F);
    } else {
      den.k = rows_of(head.k, from.held.tokens, from.made.k);
    }
  }
  out.aux_bytes = r.aux_bytes;
  const Index payload = payload_bytes(r, head);
  if (r.payload_bytes || payload != counted_payload(out, head.d(), head.dv(), head.dtype)) {
    out.payload_bytes = payload;
  }
  out.quantized = r.quantized;
  out.counted.assign(r.counted.begin(), r.counted.end());
  out.transient_bytes = r.transient_bytes;
  return out;
}

HeadCache exported(const KvHead& head, const Compressed& result, const Row& row,
                   const std::string& reason) {
  HeadCache out = cache_of(head, result);
  out.compress_ms = row.compress_ms;
  out.scoring_queries = row.scoring_queries;
  out.degenerate = reason;
  out.diag = row.diag;
  return out;
}

CacheBytes bytes_of(const HeadCache& c, Index d, Index dv, DType dtype) {
  const Index weights =
      weight_bytes(c.log_weight) + (c.denominator ? weight_bytes(c.denominator->log_weight) : 0);
  return {c.payload_bytes.value_or(counted_payload(c, d, dv, dtype)),
          c.aux_bytes.value_or(weights)};
}

Compressed compressed_of(const HeadCache& c, const KvHead& head, std::span<const Index> middle,
                         const std::string& where) {
  if (!c.payload_bytes) {
    check_elements(c.k, head.dtype, "k", where);
    check_elements(c.v, head.dtype, "v", where);
    if (c.denominator && c.denominator->k) {
      check_elements(*c.denominator->k, head.dtype, "k_den", where);
    }
  }
  std::vector<Index> held;
  std::vector<Index> made;
  for (Index i = 0; i < c.rows(); ++i) {
    const Index t = c.token.empty() ? -1 : c.token[i];
    if (t < 0) {
      made.push_back(i);
      continue;
    }
    if (!std::binary_search(middle.begin(), middle.end(), t)) {
      reject(where, fmt::format("token: row {} is {}, expected a position of the middle, {} to {}, "
                                "or -1",
                                i, t, middle.empty() ? 0 : middle.front(),
                                middle.empty() ? -1 : middle.back()));
    }
    check_token(c, i, head, where);
    held.push_back(i);
  }
  std::ranges::sort(held, {}, [&](Index i) { return c.token[i]; });
  const auto twice = std::adjacent_find(held.begin(), held.end(),
                                        [&](auto a, auto b) { return c.token[a] == c.token[b]; });
  if (twice != held.end()) {
    reject(where, fmt::format("token: duplicate {}, expected unique positions", c.token[*twice]));
  }
  if (c.quantized > static_cast<Index>(made.size())) {
    reject(where, fmt::format("quantised is {}, expected at most the {} made entries", c.quantized,
                              made.size()));
  }
  if (static_cast<Index>(c.counted.size()) > c.quantized) {
    reject(where, fmt::format("counted has {} tokens, expected at most the {} quantised",
                              c.counted.size(), c.quantized));
  }
  for (const std::int32_t t : c.counted) {
    if (!std::binary_search(middle.begin(), middle.end(), t) ||
        std::ranges::any_of(held, [&](Index i) { return c.token[i] == t; })) {
      reject(where, fmt::format("counted: {} is no position of the middle, or is held exactly", t));
    }
  }

  const auto weigh = [](const std::vector<float>& logs_of, const std::vector<Index>& rows) {
    std::vector<float> out;
    for (const Index i : rows) {
      out.push_back(weight_of(logs_of, i));
    }
    return all_ones(out) ? std::vector<float>{} : out;
  };
  Compressed out;
  for (const Index i : held) {
    out.held.tokens.push_back(c.token[i]);
  }
  out.held.weights = weigh(c.log_weight, held);
  out.made = {rows_of(c.k, made), rows_of(c.v, made), weigh(c.log_weight, made)};
  if (head.window > 0 && !made.empty()) {
    out.made.positions = quantized_positions(c, out.held.tokens, middle);
    if (out.made.positions.empty()) {
      reject(where,
             fmt::format("token: row {} is a made entry, which the layer's window of {} tokens "
                         "cannot hide; expected tokens of the trace, or quantized ones that "
                         "`counted` has or that are all others of the middle",
                         made.front(), head.window));
    }
  }
  if (c.denominator) {
    const std::vector<float>& logs_den = c.denominator->log_weight;
    Denominator& den = out.denominator.emplace();
    if (c.denominator->k) {
      den.made = {*c.denominator->k, Matrix(),
                  weigh(logs_den, positions_of({0, c.denominator->k->rows()}))};
    } else {
      den.held = {out.held.tokens, weigh(logs_den, held)};
      den.made = {out.made.k, Matrix(), weigh(logs_den, made)};
      den.same_keys = true;
    }
  }
  const CacheBytes bytes = bytes_of(c, head.d(), head.dv(), head.dtype);
  out.aux_bytes = bytes.aux;
  out.payload_bytes = bytes.payload;
  out.transient_bytes = c.transient_bytes;
  out.quantized = c.quantized;
  out.counted.assign(c.counted.begin(), c.counted.end());
  out.degenerate = c.degenerate;
  out.diag = split_params(c.diag);
  return out;
}

std::vector<std::byte> to_bytes(const HeadCache& cache) {
  Packer packer;
  pass(packer, cache);
  return std::move(packer.bytes);
}

HeadCache cache_from_bytes(std::span<const std::byte> bytes) {
  HeadCache out;
  Unpacker unpacker(bytes);
  pass(unpacker, out);
  unpacker.expect(unpacker.at_end());
  return out;
}

}  // namespace kvbench
