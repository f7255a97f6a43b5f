#include "replay/head_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "core/error.hpp"
#include "core/float16.hpp"

namespace kvbench {
namespace {

bool all_ones(const std::vector<float>& weights) {
  return std::all_of(weights.begin(), weights.end(), [](float w) { return w == 1.0F; });
}

// Logarithms; empty where all weights are 1.
std::vector<float> logs(const std::vector<float>& weights) {
  std::vector<float> out;
  if (!all_ones(weights)) {
    for (const float w : weights) {
      out.push_back(static_cast<float>(std::log(static_cast<double>(w))));
    }
  }
  return out;
}

float weight_of(const std::vector<float>& log_weights, std::size_t i) {
  return log_weights.empty() ? 1.0F
                             : static_cast<float>(std::exp(static_cast<double>(log_weights[i])));
}

// Weights of the held, then of the made.
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

// Rows of `from` that are held, then what was made.
Matrix rows_of(const Matrix& from, const std::vector<Index>& tokens, const Matrix& made) {
  const auto held = static_cast<Index>(tokens.size());
  Matrix out(held + made.rows(), from.cols());
  for (Index i = 0; i < held; ++i) {
    std::copy_n(from.row(tokens[static_cast<std::size_t>(i)]), from.cols(), out.row(i));
  }
  std::copy_n(made.data(), made.rows() * made.cols(), out.row(held));
  return out;
}

// Bytes of weights that a cache must store: none where all are 1, one where all are equal.
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

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw InputError(where + ": " + what);
}

// Keys or values that weigh what is counted are numbers of the trace's type.
void check_elements(const Matrix& m, DType dtype, const char* name, const std::string& where) {
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index c = 0; c < m.cols(); ++c) {
      if (const float x = m.row(i)[c]; round_to(dtype, x) != x) {
        refuse(where, fmt::format("{}: row {}, channel {}: {} is no {} number, which is what its "
                                  "bytes count; expected it rounded, or payload_bytes",
                                  name, i, c, x, kvbench::name(dtype)));
      }
    }
  }
}

void check_token(const HeadCache& c, std::size_t i, const KvHead& head, const std::string& where) {
  const Index t = c.token[i];
  const auto row = static_cast<Index>(i);
  const auto check = [&](const char* name, const Matrix& got, const Matrix& trace) {
    for (Index j = 0; j < trace.cols(); ++j) {
      if (!(got.row(row)[j] == trace.row(t)[j])) {
        refuse(where, fmt::format("{}: row {} is said to be token {}, but channel {} is {}, "
                                  "expected the trace's {}; token -1 says that an entry was made",
                                  name, i, t, j, got.row(row)[j], trace.row(t)[j]));
      }
    }
  };
  check("k", c.k, head.k);
  check("v", c.v, head.v);
}

// ------------------------------------------------------------------------------------ as bytes

class Packer {
 public:
  template <class T>
  void put(const T* values, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* from = reinterpret_cast<const std::byte*>(values);
    bytes.insert(bytes.end(), from, from + count * sizeof(T));
  }
  template <class T>
  void put(const T& value) {
    put(&value, 1);
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    put(values.data(), values.size());
  }
  void put(const std::string& text) {
    put(text.size());
    put(text.data(), text.size());
  }
  void put(const Matrix& m) {
    put(m.rows());
    put(m.cols());
    put(m.data(), static_cast<std::size_t>(m.rows() * m.cols()));
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(static_cast<std::uint8_t>(value.has_value()));
    if (value) {
      put(*value);
    }
  }
  void put(const CacheDenominator& d) {
    put(d.k);
    put(d.log_weight);
  }

  std::vector<std::byte> bytes;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  void get(T* values, std::size_t count) {
    need(count, sizeof(T));
    if (count > 0) {
      std::memcpy(values, rest_.data(), count * sizeof(T));
    }
    rest_ = rest_.subspan(count * sizeof(T));
  }
  template <class T>
  void get(T& value) {
    get(&value, 1);
  }
  template <class T>
  void get(std::vector<T>& values) {
    values.resize(size(sizeof(T)));
    get(values.data(), values.size());
  }
  void get(std::string& text) {
    text.resize(size(1));
    get(text.data(), text.size());
  }
  void get(Matrix& m) {
    Index rows = 0;
    Index cols = 0;
    get(rows);
    get(cols);
    if (rows < 0 || cols < 0 || (cols > 0 && rows > static_cast<Index>(rest_.size()) / cols)) {
      fail();
    }
    m = Matrix(rows, cols);
    get(m.data(), static_cast<std::size_t>(rows * cols));
  }
  template <class T>
  void get(std::optional<T>& value) {
    std::uint8_t there = 0;
    get(there);
    if (there > 1) {
      fail();
    }
    if (there == 1) {
      get(value.emplace());
    }
  }
  void get(CacheDenominator& d) {
    get(d.k);
    get(d.log_weight);
  }
  void expect_end() const {
    if (!rest_.empty()) {
      fail();
    }
  }

 private:
  [[noreturn]] static void fail() { throw IoError("a cache's record is not what was written"); }
  void need(std::size_t count, std::size_t each) const {
    if (count > rest_.size() / each) {
      fail();
    }
  }
  std::size_t size(std::size_t each) {
    std::size_t count = 0;
    get(count);
    need(count, each);
    return count;
  }

  std::span<const std::byte> rest_;
};

// The same members in the same order, to either.
template <class Cache, class Visit>
void each_member(Cache& c, const Visit& visit) {
  visit(c.k);
  visit(c.v);
  visit(c.log_weight);
  visit(c.token);
  visit(c.denominator);
  visit(c.aux_bytes);
  visit(c.payload_bytes);
  visit(c.quantised);
  visit(c.transient_bytes);
  visit(c.compress_ms);
  visit(c.scoring_queries);
  visit(c.infeasible);
  visit(c.degenerate);
  visit(c.diag);
}

}  // namespace

HeadCache cache_of(const KvHead& head, const Compressed& r) {
  HeadCache out;
  out.k = rows_of(head.k, r.held.tokens, r.made.k.cols() > 0 ? r.made.k : Matrix(0, head.d()));
  out.v = rows_of(head.v, r.held.tokens, r.made.v.cols() > 0 ? r.made.v : Matrix(0, head.dv()));
  out.log_weight = logs(weights_of(r.held, r.made));
  out.token.assign(static_cast<std::size_t>(out.rows()), -1);
  std::copy(r.held.tokens.begin(), r.held.tokens.end(), out.token.begin());
  Index keys_only = 0;
  if (r.denominator) {
    const Denominator& from = *r.denominator;
    CacheDenominator& den = out.denominator.emplace();
    const std::vector<float> weights = weights_of(from.held, from.made);
    den.log_weight = logs(weights);
    keys_only =
        from.made.k.rows() + (from.same_keys ? 0 : static_cast<Index>(from.held.tokens.size()));
    // Only what is held: then the keys need not stand in the file twice.
    const bool repeats = from.same_keys && from.made.k.rows() == 0 && r.made.k.rows() == 0;
    if (repeats) {
      den.log_weight.resize(weights.size(), 0.0F);
    } else {
      den.k = rows_of(head.k, from.held.tokens,
                      from.made.k.cols() > 0 ? from.made.k : Matrix(0, head.d()));
    }
  }
  out.aux_bytes = r.aux_bytes;
  const Index payload = r.payload_bytes.value_or(
      out.rows() * head.pair_bytes() + keys_only * head.d() * bytes_per_element(head.dtype));
  if (r.payload_bytes || payload != counted_payload(out, head.d(), head.dv(), head.dtype)) {
    out.payload_bytes = payload;
  }
  out.quantised = r.quantised;
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
  std::vector<std::size_t> held;
  std::vector<std::size_t> made;
  for (std::size_t i = 0; i < static_cast<std::size_t>(c.rows()); ++i) {
    const Index t = c.token.empty() ? -1 : c.token[i];
    if (t < 0) {
      made.push_back(i);
      continue;
    }
    if (!std::binary_search(middle.begin(), middle.end(), t)) {
      refuse(where, fmt::format("token: row {} is {}, expected a position of the middle, {} to {}, "
                                "or -1",
                                i, t, middle.empty() ? 0 : middle.front(),
                                middle.empty() ? -1 : middle.back()));
    }
    check_token(c, i, head, where);
    held.push_back(i);
  }
  std::sort(held.begin(), held.end(),
            [&](std::size_t a, std::size_t b) { return c.token[a] < c.token[b]; });
  const auto twice = std::adjacent_find(held.begin(), held.end(),
                                        [&](auto a, auto b) { return c.token[a] == c.token[b]; });
  if (twice != held.end()) {
    refuse(where,
           fmt::format("token: {} comes twice, expected each position once", c.token[*twice]));
  }
  if (c.quantised > static_cast<Index>(made.size())) {
    refuse(where, fmt::format("quantised is {}, expected at most the {} entries that were made",
                              c.quantised, made.size()));
  }

  const auto pick = [](const Matrix& from, const std::vector<std::size_t>& rows) {
    Matrix out(static_cast<Index>(rows.size()), from.cols());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(from.row(static_cast<Index>(rows[i])), from.cols(),
                  out.row(static_cast<Index>(i)));
    }
    return out;
  };
  const auto weigh = [](const std::vector<float>& logs_of, const std::vector<std::size_t>& rows) {
    std::vector<float> out;
    for (const std::size_t i : rows) {
      out.push_back(weight_of(logs_of, i));
    }
    return all_ones(out) ? std::vector<float>{} : out;
  };
  Compressed out;
  for (const std::size_t i : held) {
    out.held.tokens.push_back(c.token[i]);
  }
  out.held.weights = weigh(c.log_weight, held);
  out.made = {pick(c.k, made), pick(c.v, made), weigh(c.log_weight, made)};
  if (c.denominator) {
    const std::vector<float>& logs_den = c.denominator->log_weight;
    Denominator& den = out.denominator.emplace();
    if (c.denominator->k) {
      std::vector<std::size_t> all(static_cast<std::size_t>(c.denominator->k->rows()));
      std::iota(all.begin(), all.end(), std::size_t{0});
      den.made = {*c.denominator->k, Matrix(), weigh(logs_den, all)};
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
  out.quantised = c.quantised;
  out.degenerate = c.degenerate;
  out.diag = split_params(c.diag);
  return out;
}

std::vector<std::byte> to_bytes(const HeadCache& cache) {
  Packer packer;
  each_member(cache, [&](const auto& member) { packer.put(member); });
  return std::move(packer.bytes);
}

HeadCache cache_from_bytes(std::span<const std::byte> bytes) {
  HeadCache out;
  Unpacker unpacker(bytes);
  each_member(out, [&](auto& member) { unpacker.get(member); });
  unpacker.expect_end();
  return out;
}

}  // namespace kvbench
