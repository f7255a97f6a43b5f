// magicpig: each query reads the tokens that collide with it in at least two hash tables, weighted
// by the inverse of that probability.
// [1] Chen et al., "MagicPIG: LSH Sampling for Efficient LLM Generation", ICLR 2025,
//     arXiv:2410.16179, sections 3 and 4.
// Keys less the task's mean key, and queries as they are, are hashed by the signs of their products
// with `bits` random Gaussian directions in each of `tables` tables (SimHash). A token of cosine c
// with the query collides in a table with probability p = (1 - acos(c)/pi)^bits, and in two or more
// with u = 1 - (1-p)^L - L p (1-p)^(L-1). It is read then, with weight 1/u: numerator and
// denominator are unbiased.
// Index: bits tables per token. At a budget, the most tables for which index and reads fit in the
// mean over the queries of every head of the group; at least two.
// In: K [m, d], the evaluated queries. Time O(m bits tables d), memory O(m tables).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "algorithms/contract.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"

namespace kvbench::method_magicpig {
namespace {

constexpr Index kFewestTables = 2;

double collision_probability(double cosine, Index bits, Index tables) {
  const double p = std::pow(1.0 - std::acos(std::clamp(cosine, -1.0, 1.0)) / std::numbers::pi,
                            static_cast<double>(bits));
  const auto count = static_cast<double>(tables);
  // 1 - (1-p)^L without the digits that the subtraction loses for small p.
  return -std::expm1(count * std::log1p(-p)) - count * p * std::pow(1.0 - p, count - 1.0);
}

class HashTables : public ReadIndex {
 public:
  HashTables(const Task& task, const Params& params) : task_(task), bits_(params.integer("bits")) {
    const KvHead& head = task.head;
    if (!params.is_auto("tables")) {
      tables_ = params.integer("tables");
    } else {
      bounded_ = true;
      const Index budget = given_budget(task.budget_bytes, "tables=");
      if (budget < index_bytes(kFewestTables)) {
        refuse_budget(index_bytes(kFewestTables), budget, "index of two tables needs");
      }
      tables_ = 8 * budget / (bits_ * task.count());
    }
    RngStream rng = task.rng.stream("directions");
    directions_t_.resize(head.d(), bits_ * tables_);
    for (Index i = 0; i < directions_t_.cols(); ++i) {
      for (Index t = 0; t < head.d(); ++t) {
        directions_t_.row(t)[i] =
            static_cast<float>(rng.normal(static_cast<std::uint64_t>(i * head.d() + t)));
      }
    }
    gather_rows(head.k, task.tokens, keys_);
    center_rows(keys_);
    codes_ = hash(keys_);
  }

  Reads search() override {
    const KvHead& head = task_.head;
    const Index m = task_.evaluated.size();
    std::vector<std::vector<std::uint32_t>> queries;  // codes [m, tables] of each head
    for (Index g = 0; g < head.group(); ++g) {
      Matrix rows(m, head.d());
      const MatrixD scaled = scaled_queries(head, g, m);
      std::transform(scaled.row(0), scaled.row(0) + m * head.d(), rows.data(),
                     [](double x) { return static_cast<float>(x); });
      queries.push_back(hash(rows));
    }
    Index tables = tables_;  // of the KV head: every query reads all of them
    for (Index g = 0; bounded_ && g < head.group(); ++g) {
      tables = std::min(tables, most_tables(queries[g]));
    }
    Reads out;
    out.lists.queries = m;
    for (Index g = 0; g < head.group(); ++g) {
      for (Index j = 0; j < m; ++j) {
        add_list(g, j, queries[g].data() + j * tables_, tables, out);
      }
    }
    out.index_bytes = index_bytes(tables);
    out.diag = {{"tables", fmt::format("{}", tables)}};
    return out;
  }

 private:
  Index index_bytes(Index tables) const { return (task_.count() * bits_ * tables + 7) / 8; }

  // [rows, tables].
  std::vector<std::uint32_t> hash(const Matrix& rows) const {
    constexpr Index kRows = 256;
    std::vector<std::uint32_t> out(rows.rows() * tables_, 0);
    Matrix block, products;
    for (Index i0 = 0; i0 < rows.rows(); i0 += kRows) {
      block.resize(std::min(kRows, rows.rows() - i0), rows.cols());
      std::copy(rows.row(i0), rows.row(i0) + block.rows() * block.cols(), block.data());
      inner_products(block, directions_t_, products);
      for (Index i = 0; i < block.rows(); ++i) {
        for (Index b = 0; b < products.cols(); ++b) {
          out[(i0 + i) * tables_ + b / bits_] |= (products.row(i)[b] >= 0.0F ? 1U : 0U)
                                                 << (b % bits_);
        }
      }
    }
    return out;
  }

  // The table of the second collision of key `i` with a query, or `tables_`.
  Index second_collision(const std::uint32_t* query, Index i) const {
    const std::uint32_t* key = codes_.data() + i * tables_;
    bool collided = false;
    for (Index l = 0; l < tables_; ++l) {
      if (key[l] == query[l]) {
        if (collided) {
          return l;
        }
        collided = true;
      }
    }
    return tables_;
  }

  // The most tables for which the mean over the queries of a head fits.
  Index most_tables(std::span<const std::uint32_t> codes) const {
    const Index m = task_.evaluated.size();
    std::vector<Index> reads(tables_ + 1, 0);  // [l]: tokens whose second collision is in table l
    for (Index j = 0; j < m; ++j) {
      for (Index i = 0; i < task_.count(); ++i) {
        ++reads[second_collision(codes.data() + j * tables_, i)];
      }
    }
    const Index limit = m * *task_.budget_bytes;
    Index tokens = reads[0] + reads[1];
    const auto bytes = [&](Index tables) {
      return m * index_bytes(tables) + tokens * task_.read_bytes();
    };
    if (bytes(kFewestTables) > limit) {
      refuse_budget((bytes(kFewestTables) + m - 1) / m, *task_.budget_bytes, "two tables need");
    }
    Index tables = kFewestTables;
    while (tables < tables_) {
      tokens += reads[tables];
      if (bytes(tables + 1) > limit) {
        break;
      }
      ++tables;
    }
    return tables;
  }

  void add_list(Index g, Index j, const std::uint32_t* codes, Index tables, Reads& out) const {
    const KvHead& head = task_.head;
    const std::span<const float> query =
        head.q[g].view().row_span(head.nq() - task_.evaluated.size() + j);
    std::vector<std::uint32_t>& tokens = out.lists.tokens.emplace_back();
    std::vector<float>& weights = out.lists.weights.emplace_back();
    for (Index i = 0; i < task_.count(); ++i) {
      if (second_collision(codes, i) < tables) {
        tokens.push_back(static_cast<std::uint32_t>(task_.tokens[i]));
        weights.push_back(weight_of(keys_.view().row_span(i), query, tables));
      }
    }
    tokens.shrink_to_fit();
    weights.shrink_to_fit();
    out.asked.push_back(static_cast<Index>(tokens.size()));
  }

  float weight_of(std::span<const float> key, std::span<const float> query, Index tables) const {
    const double norms = std::sqrt(squared_norm(key) * squared_norm(query));
    const double cosine = norms > 0.0 ? inner_product(key, query) / norms : 0.0;
    return static_cast<float>(1.0 / collision_probability(cosine, bits_, tables));
  }

  Task task_;
  Index bits_;
  Index tables_ = 0;  // hashed; at a budget the most that an index alone could have
  bool bounded_ = false;
  Matrix directions_t_;  // [d, bits tables]
  Matrix keys_;          // [m, d], less their mean
  std::vector<std::uint32_t> codes_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "magicpig";
  info.family = Family::retrieval;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index kept) {
    const Index bits = p.integer("bits");
    const Index tables =
        p.is_auto("tables") ? 32 * kept * (l.d + l.dv) / (bits * l.n) + 1 : p.integer("tables");
    return 4 * tables * (l.n + bits * (l.d + 256));
  };
  info.summary =
      "each query samples tokens by hash collisions, with inverse probabilities as weights";
  info.source = "Chen et al., ICLR 2025, arXiv:2410.16179";
  info.departures =
      "every layer retrieves (the paper leaves some whole); probabilities without the code's 1e-4; "
      "no unions: the weights are of one query's collisions";
  info.params = {integer_param("tables", "auto", 2, 4096, "tables",
                               "hash tables, in place of a budget; more read more tokens"),
                 integer_param("bits", "10", 1, 31, "bits",
                               "directions of a table; more make collisions rarer")};
  info.sizes = {"tables"};
  info.grid = {"bits=4,6,8,10,12"};
  info.facts = [](const Params&) { return JobFacts{.random = true}; };
  return {.info = info, .open_reads = open_reads_as<HashTables>};
}

}  // namespace kvbench::method_magicpig
