// Sums of many lists per launch, and rows of probabilities, as block kernels against the functions
// of the CPU: equal to rounding, and to the bit however the work is cut.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/device_dense.hpp"
#include "attention/device_lists.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

// Sums of up to a thousand terms in float64 in two orders, of logits up to about 10.
constexpr double kRelative = 1e-11;

// Lists over a head: its own tokens with and without weights, made ones, keys alone, empty ones.
struct Lists {
  KvHead head;
  Matrix made_k, made_v;
  std::vector<Index> all;
  std::vector<std::vector<Index>> rows;
  std::vector<std::vector<float>> weights;
  MatrixD queries;
  std::vector<ListPiece> lists;
};

Lists make_lists(const HeadShape& shape, Index steps, unsigned seed) {
  std::mt19937_64 generator(seed);
  Lists out;
  out.head = make_head(shape, seed);
  out.made_k = normal_matrix(40, shape.d, 3.0, generator);
  out.made_v = normal_matrix(40, shape.dv, 1.0, generator);
  out.all = positions(0, std::max<Index>(shape.n, 40));
  out.queries = MatrixD(steps * shape.group, shape.d);
  std::normal_distribution<double> normal;
  for (Index i = 0; i < out.queries.rows() * shape.d; ++i) {
    out.queries.data()[i] = normal(generator) / std::sqrt(static_cast<double>(shape.d));
  }
  out.rows.reserve(static_cast<std::size_t>(steps));
  out.weights.reserve(static_cast<std::size_t>(steps));
  for (Index s = 0; s < steps; ++s) {
    std::vector<Index> rows;
    std::vector<float> weights;
    for (Index i = 0; i < shape.n; ++i) {
      if (generator() % 3 != 0) {
        rows.push_back(i);
        weights.push_back(static_cast<float>(generator() % 5) * 0.75F);  // some are 0
      }
    }
    out.rows.push_back(std::move(rows));
    out.weights.push_back(std::move(weights));
    const std::vector<Index>& own = out.rows.back();
    const std::span<const Index> all(out.all);
    const Index first = s * shape.group;
    const auto some = static_cast<std::size_t>(generator() % 41);
    const auto add = [&](const SumPiece& piece) {
      out.lists.push_back({first, shape.group, piece});
    };
    add({out.head.k, out.head.v, own, {}, 1.0F, Part::both, {}});
    add({out.head.k, out.head.v, own, out.weights.back(), 1.0F, Part::numerator, {}});
    add({out.head.k,
         out.head.v,
         all.first(static_cast<std::size_t>(s % shape.n)),
         {},
         2.0F,
         Part::denominator,
         {}});
    add({out.made_k, out.made_v, all.first(some), {}, 1.0F, Part::both, {}});
    add({out.made_k, MatrixView{}, all.first(some), {}, 0.5F, Part::denominator, {}});
  }
  return out;
}

void expect_near(double cpu, double found, double scale) {
  if (std::isinf(cpu)) {
    EXPECT_EQ(cpu, found);
  } else {
    EXPECT_LE(std::abs(cpu - found), kRelative * std::max(scale, std::abs(cpu)));
  }
}

std::vector<PartialSums> run(const Lists& x, HostMachine::Order order, std::size_t scratch) {
  HostMachine machine(order);
  machine.set_scratch_bytes(scratch);
  const HeadTensors<HostMachine> tensors(machine, x.head);
  return list_sums_on(machine, tensors, x.queries, x.lists);
}

void expect_same_bits(const std::vector<PartialSums>& a, const std::vector<PartialSums>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].shift, b[i].shift);
    ASSERT_EQ(a[i].denominator, b[i].denominator);
    for (Index e = 0; e < a[i].numerator.rows() * a[i].numerator.cols(); ++e) {
      ASSERT_EQ(a[i].numerator.data()[e], b[i].numerator.data()[e]);
    }
  }
}

TEST(DeviceLists, EqualTheEstimatorForEveryShape) {
  const std::vector<HeadShape> shapes = {{1, 1, 1, 1, 1},         {513, 513, 64, 64, 3},
                                         {1100, 4, 80, 96, 1},    {130, 130, 96, 3, 8},
                                         {600, 600, 128, 128, 2}, {70, 70, 256, 200, 2}};
  for (const HeadShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << "n " << shape.n << " d " << shape.d);
    const Lists x = make_lists(shape, 5, 3);
    const auto found = run(x, HostMachine::Order::forward, std::size_t{1} << 26);
    expect_same_bits(found, run(x, HostMachine::Order::backward, std::size_t{1} << 26));
    expect_same_bits(found, run(x, HostMachine::Order::forward, 1000));
    ASSERT_EQ(found.size(), x.lists.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const ListPiece& list = x.lists[i];
      const SumPiece& p = list.piece;
      MatrixD queries(list.queries, shape.d);
      std::copy_n(x.queries.row(list.first_query), list.queries * shape.d, queries.data());
      SoftmaxSums cpu(queries, shape.dv);
      cpu.add_rows(p.keys, p.values, p.rows, p.weights, p.common, p.part);
      SoftmaxSums other(queries, shape.dv);
      other.add(found[i]);
      if (p.part == Part::numerator) {
        // Without a denominator there is no output: give both the same.
        const PartialSums one{MatrixD(list.queries, shape.dv),
                              std::vector<double>(static_cast<std::size_t>(list.queries), 1.0),
                              std::vector<double>(static_cast<std::size_t>(list.queries), 0.0)};
        cpu.add(one);
        other.add(one);
      }
      Index degenerate_cpu = 0;
      Index degenerate_other = 0;
      const MatrixD z = cpu.output(degenerate_cpu);
      const MatrixD y = other.output(degenerate_other);
      ASSERT_EQ(degenerate_cpu, degenerate_other);
      for (Index r = 0; r < list.queries; ++r) {
        const auto at = static_cast<std::size_t>(r);
        expect_near(cpu.log_denominator()[at], other.log_denominator()[at], 1.0);
        double scale = 0.0;
        for (Index c = 0; c < shape.dv; ++c) {
          scale = std::max(scale, std::abs(z.row(r)[c]));
        }
        for (Index c = 0; c < shape.dv && degenerate_cpu == 0; ++c) {
          expect_near(z.row(r)[c], y.row(r)[c], scale);
        }
      }
    }
  }
}

TEST(DeviceLists, RefusesWhatItCannotSum) {
  const Lists x = make_lists({20, 20, 8, 8, 1}, 1, 4);
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, x.head);
  const std::span<const Index> all(x.all);
  const ListPiece causal{0, 1, {x.head.k, x.head.v, all.first(4), {}, 1.0F, Part::both, 3}};
  EXPECT_THROW(list_sums_on(machine, tensors, x.queries, std::span(&causal, 1)), std::logic_error);
  const ListPiece mixed{0, 1, {x.made_k, x.head.v, all.first(4), {}, 1.0F, Part::both, {}}};
  EXPECT_THROW(list_sums_on(machine, tensors, x.queries, std::span(&mixed, 1)), std::logic_error);
}

TEST(DeviceProbabilities, EqualTheCpuForEveryShape) {
  for (const HeadShape& shape : std::vector<HeadShape>{
           {1, 1, 3, 1, 1}, {513, 60, 64, 8, 2}, {130, 130, 256, 4, 1}, {4200, 20, 16, 4, 1}}) {
    const KvHead head = make_head(shape, 5);
    std::vector<Index> at;
    for (Index i = head.q_start(); i < head.n(); i += 3) {
      at.push_back(i);
    }
    const MatrixD cpu = exact_probabilities(head, shape.group - 1, at);
    for (const std::size_t scratch : {std::size_t{1} << 26, std::size_t{50000}}) {
      HostMachine machine(HostMachine::Order::backward);
      machine.set_scratch_bytes(scratch);
      const HeadTensors<HostMachine> tensors(machine, head);
      const MatrixD found = exact_probabilities_on(machine, tensors, shape.group - 1, at);
      ASSERT_EQ(found.rows(), cpu.rows());
      ASSERT_EQ(found.cols(), cpu.cols());
      for (Index i = 0; i < cpu.rows() * cpu.cols(); ++i) {
        ASSERT_LE(std::abs(cpu.data()[i] - found.data()[i]), 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace kvbench
