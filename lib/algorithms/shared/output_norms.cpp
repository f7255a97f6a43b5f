#include "algorithms/shared/output_norms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "attention/inner_products.hpp"
#include "core/error.hpp"
#include "core/shared_work.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kValuesAtOnce = 256;

struct Slab {
  MatrixD values, products;
};

double norm_of(const double* x, Index n, OutputNorm norm) {
  double sum = 0.0;
  for (Index i = 0; i < n; ++i) {
    sum += norm == OutputNorm::one ? std::abs(x[i]) : x[i] * x[i];
  }
  return norm == OutputNorm::one ? sum : std::sqrt(sum);
}

}  // namespace

std::vector<std::vector<double>> output_norms(const Task& task, std::span<const Index> tokens,
                                              OutputNorm norm) {
  const Index dv = task.head.dv();
  const Matrix& w = *task.o_proj;
  std::vector<std::vector<double>> out;
  MatrixD head_t(dv, w.rows());
  ScratchPool<Slab> scratch;
  for (Index h = 0; h < task.head.group(); ++h) {
    for (Index r = 0; r < w.rows(); ++r) {
      for (Index t = 0; t < dv; ++t) {
        head_t.row(t)[r] = static_cast<double>(w.row(r)[h * dv + t]);
      }
    }
    std::vector<double>& norms = out.emplace_back(tokens.size());
    const std::size_t slabs = (tokens.size() + kValuesAtOnce - 1) / kValuesAtOnce;
    share_work(static_cast<Index>(slabs), [&](Index slab) {
      const std::size_t begin = static_cast<std::size_t>(slab) * kValuesAtOnce;
      const std::size_t count = std::min(kValuesAtOnce, tokens.size() - begin);
      auto one = scratch.take();
      gather_rows(task.head.v, tokens.subspan(begin, count), one->values);
      inner_products(one->values, head_t, one->products);
      for (std::size_t i = 0; i < count; ++i) {
        norms[begin + i] = norm_of(one->products.row(static_cast<Index>(i)), w.rows(), norm);
      }
      scratch.give(std::move(one));
    });
  }
  return out;
}

const std::vector<double>& mean_output_norms(const Task& task) {
  const auto& all = task.scores->cached("output norms", [&] {
    std::vector<Index> tokens(static_cast<std::size_t>(task.head.n()));
    std::iota(tokens.begin(), tokens.end(), Index{0});
    std::vector<double> out(tokens.size(), 0.0);
    const auto norms = output_norms(task, tokens, OutputNorm::one);
    for (const std::vector<double>& head : norms) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] += head[i] / static_cast<double>(norms.size());
      }
    }
    return ScoreBook::Scores{std::move(out)};
  });
  return all.front();
}

void require_projection(const char* method, bool there) {
  if (!there) {
    throw InputError(
        fmt::format("{}: needs the layer's output projection (o_proj), which this layer "
                    "does not have; expected a trace dumped with it",
                    method));
  }
}

std::map<std::string, std::string> resolve_projection(const Params& params,
                                                      const LayerFacts& layer) {
  require_projection(params.method().c_str(), layer.hidden > 0);
  return {};
}

}  // namespace kvbench
