// lowrank: every token stays; keys and values of a KV head are mean + U C, U orthonormal with fewer
// columns than channels.
// [1] For weight=queries: Lesens, Rakhshan, Rabusseau, "KQ-SVD: Compressing the KV Cache with
//     Provable Guarantees on Attention Fidelity", AISTATS 2026, arXiv:2512.05916.
// weight=none: truncated SVD of K - mean. weight=queries: with L L' = sum q q' + 1e-6 trace/d I
// over the group's scoring queries, the SVD of (K - mean) L, its right factor times L^-1: of this
// rank, it keeps the queries' logits best. Values, and keys without scoring queries, as
// weight=none. keys=pre un-rotates keys and queries first and rotates what is read back. Mean, U
// and C are rounded to the trace's type; the mean's rounding error goes into the factors. A budget
// takes the largest equal ranks that fit, each capped by its matrix.
//
// In: K [m, d], V [m, dv]. Out: m pairs read back; (m + d) rank + d elements for keys, likewise for
// values. Decomposes R of a Householder QR: a Gram matrix costs half, but U would not be
// orthonormal for singular values below 1e-8 of the largest. float64; the order of sums is Eigen's
// and depends on the instruction set. Time O(m (d^2 + dv^2) + d^3 + dv^3).
#include <fmt/format.h>

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <utility>

#include "algorithms/shared/coded_keys.hpp"
#include "algorithms/shared/size.hpp"
#include "core/decompositions.hpp"
#include "core/float16.hpp"
#include "core/rope.hpp"

namespace kvbench::method_lowrank {
namespace {

using Columns = Eigen::MatrixXd;

constexpr Index kBlock = 256;    // rows per block
constexpr double kRidge = 1e-6;  // of the queries' mean square

struct Ranks {
  Index k = 0;
  Index v = 0;
};

struct Sizes {
  Index tokens, d, dv, element_bytes;

  Ranks capped(Ranks r) const { return {std::min({r.k, tokens, d}), std::min({r.v, tokens, dv})}; }
  Index bytes(Ranks r) const {
    return ((tokens + d) * r.k + d + (tokens + dv) * r.v + dv) * element_bytes;
  }
  // The largest equal ranks that fit; 0 if none do.
  Ranks fitting(Index budget) const {
    for (Index r = std::min(tokens, std::max(d, dv)); r > 0; --r) {
      if (bytes(capped({r, r})) <= budget) {
        return capped({r, r});
      }
    }
    return {};
  }
};

// Ranks from parameters, a missing one equal to the other; none if both are auto.
std::optional<Ranks> fixed_ranks(const Params& params) {
  if (params.is_auto("rank_k") && params.is_auto("rank_v")) {
    return {};
  }
  const auto rank = [&params](const char* own, const char* other) {
    return params.integer(params.is_auto(own) ? other : own);
  };
  return Ranks{rank("rank_k", "rank_v"), rank("rank_v", "rank_k")};
}

Ranks choose(const Sizes& sizes, std::optional<Index> budget, const Params& params) {
  if (const std::optional<Ranks> fixed = fixed_ranks(params)) {
    return sizes.capped(*fixed);
  }
  const Ranks out = sizes.fitting(given_budget(budget, "rank_k= or rank_v="));
  if (out.k == 0) {
    refuse_budget(sizes.bytes({1, 1}), *budget, "needs",
                  fmt::format(" for {} tokens at rank 1", sizes.tokens));
  }
  return out;
}

// U [m, rank] and C [rank, width], rounded, with the mean [width].
struct Factors {
  Columns u, c;
  Eigen::RowVectorXd mean;
};

void round_all(DType type, Columns& x) {
  x = x.unaryExpr([type](double e) { return static_cast<double>(stored(type, e)); });
}

// Of `x` less its mean, both rounded to `type`. `weight`: L, or empty.
Factors factorise(Columns x, const Columns& weight, Index rank, DType type) {
  Factors out;
  Columns mean = x.colwise().mean();
  round_all(type, mean);
  out.mean = mean;
  x.rowwise() -= out.mean;
  if (weight.size() > 0) {
    for (Index b = 0; b < x.rows(); b += kBlock) {
      auto block = x.middleRows(b, std::min(kBlock, x.rows() - b));
      block = (block * weight.triangularView<Eigen::Lower>()).eval();
    }
  }
  LeadingSvd svd = leading_svd(x, rank);
  x.resize(0, 0);  // frees it before the caller's expression ends
  out.u = std::move(svd.u);
  out.c = svd.s.asDiagonal() * svd.v.transpose();
  if (weight.size() > 0) {
    weight.triangularView<Eigen::Lower>().solveInPlace<Eigen::OnTheRight>(out.c);
  }
  round_all(type, out.u);
  round_all(type, out.c);
  return out;
}

// mean + U C, rotated to the tokens' positions unless `rope` is null.
Matrix read_back(const Factors& f, const RopeTables* rope, std::span<const Index> tokens) {
  Matrix out(f.u.rows(), f.c.cols());
  RowMajorMatrix block;
  for (Index b = 0; b < out.rows(); b += kBlock) {
    block.noalias() = f.u.middleRows(b, std::min(kBlock, out.rows() - b)) * f.c;
    block.rowwise() += f.mean;
    for (Index i = 0; i < block.rows(); ++i) {
      const std::span<const double> row(block.row(i).data(),
                                        static_cast<std::size_t>(block.cols()));
      const std::span<float> to(out.row(b + i), row.size());
      if (rope != nullptr) {
        rotate(*rope, tokens[b + i], row, to);
      } else {
        std::ranges::transform(row, to.begin(), [](double x) { return static_cast<float>(x); });
      }
    }
  }
  return out;
}

// Copies a row, un-rotated unless `rope` is null.
void copy_row(const RopeTables* rope, Index position, std::span<const float> row,
              std::span<double> out) {
  if (rope != nullptr) {
    unrotate(*rope, position, row, out);
  } else {
    std::ranges::copy(row, out.begin());
  }
}

Columns gather(MatrixView m, std::span<const Index> tokens, const RopeTables* rope) {
  Columns out(static_cast<Index>(tokens.size()), m.cols);
  Eigen::RowVectorXd row(m.cols);
  for (Index i = 0; i < out.rows(); ++i) {
    copy_row(rope, tokens[i], m.row_span(tokens[i]),
             {row.data(), static_cast<std::size_t>(m.cols)});
    out.row(i) = row;
  }
  return out;
}

bool weighs_queries(const Params& params) {
  return params.text("weight") == "queries";
}

// L of the group's scoring queries; empty if there are none, or all are 0.
Columns query_weight(const Task& task, const RopeTables* rope) {
  const Index d = task.head.d();
  Columns gram = Columns::Zero(d, d);
  RowMajorMatrix block;
  for (const Matrix& queries : task.head.q) {
    for (Index b = task.scoring.begin; b < task.scoring.end; b += kBlock) {
      block.resize(std::min(kBlock, task.scoring.end - b), d);
      for (Index i = 0; i < block.rows(); ++i) {
        copy_row(rope, b + i, queries.view().row_span(b + i - task.head.q_start()),
                 {block.row(i).data(), static_cast<std::size_t>(d)});
      }
      gram.selfadjointView<Eigen::Lower>().rankUpdate(block.transpose());
    }
  }
  const double trace = gram.trace();
  if (!(trace > 0.0)) {
    return {};
  }
  gram.diagonal().array() += kRidge * trace / static_cast<double>(d);
  return Eigen::LLT<Columns>(gram).matrixL();
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  if (task.tokens.empty()) {
    return {};
  }
  const Sizes sizes{task.count(), head.d(), head.dv(), bytes_per_element(head.dtype)};
  const Ranks ranks = choose(sizes, task.budget_bytes, params);
  const RopeTables* rope = codes_unrotated(params) ? task.rope : nullptr;
  const Columns weight = weighs_queries(params) ? query_weight(task, rope) : Columns();
  CodedEntries out;
  out.k = read_back(factorise(gather(head.k, task.tokens, rope), weight, ranks.k, head.dtype), rope,
                    task.tokens);
  out.v = read_back(factorise(gather(head.v, task.tokens, nullptr), {}, ranks.v, head.dtype),
                    nullptr, task.tokens);
  out.bytes.codes = sizes.bytes(ranks);
  out.diag = {{"rank_k", fmt::format("{}", ranks.k)},
              {"rank_v", fmt::format("{}", ranks.v)},
              {"k_error", code_error(out.k, head.k, task.tokens)},
              {"v_error", code_error(out.v, head.v, task.tokens)}};
  return hold_coded(head, std::move(out), task.tokens);
}

std::map<std::string, std::string> resolve(const Params& params, const LayerFacts& layer) {
  require_tables_for_keys(params, layer);
  return {};
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "lowrank";
  info.family = Family::quantization;
  info.copies = 2;
  info.holds = Holds::placed;
  info.summary = "all tokens: keys and values as a mean and two thin factors per KV head";
  info.source = "truncated SVD; weight=queries: Lesens et al., KQ-SVD, 2025, arXiv:2512.05916";
  info.departures =
      "weight=queries: one factor per KV head for its group's queries, a ridge of 1e-6 of their "
      "mean square, keys less their mean, values by truncated SVD";
  const auto rank = [](const char* name, const char* what) {
    return integer_param(
        name, "auto", 1, 1e6, "columns",
        fmt::format(
            "rank of the {}, in place of a budget; at most their tokens and channels; auto: the "
            "other rank if given, otherwise the largest equal ranks that fit the budget",
            what));
  };
  info.params = {rank("rank_k", "keys"), rank("rank_v", "values"),
                 choice_param("weight", {"none", "queries"},
                              "what the factors of keys approximate: none: the keys; queries: the "
                              "logits of the scoring queries"),
                 choice_param("keys", {"post", "pre"},
                              "post: keys as stored; pre: un-rotated by the trace's rotary tables, "
                              "rotated again when read")};
  info.sizes = {"rank_k", "rank_v"};
  info.joint_sizes = true;
  info.grid = {"keys=post,pre;weight=none,queries"};
  info.authors = "weight=queries";
  info.facts = [](const Params& p) {
    JobFacts out{.rope = codes_unrotated(p)};
    if (weighs_queries(p)) {
      out.scoring = {Scoring()};
    }
    return out;
  };
  info.resolve = resolve;
  info.not_quantizable = "it is no set of tokens";
  return {info, compress};
}

}  // namespace kvbench::method_lowrank
