// The phases of one position's attention against a plain softmax, in float64, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/device_tensors.hpp"
#include "attention/panel_attention.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

// All phases of one position's attention, by threads `begin` and above.
struct AttendOnce {
  static constexpr int kThreads = PanelAttention::kThreads;
  struct Shared {
    double queries[PanelAttention::kQueryRoom];
  };

  PanelAttention attention;
  Index seen;
  int begin;

  int passes() const {
    int count = 0;
    for (Index g = 0; g < attention.group; g += attention.heads_from(g)) {
      ++count;
    }
    return count;
  }
  int phases(Index) const { return 2 * passes() + 4; }

  void run(int phase, Index, int thread, Shared& shared) const {
    Index head = 0;
    for (int pass = 0; pass < phase / 2 && pass < passes(); ++pass) {
      head += attention.heads_from(head);
    }
    double* logits = attention.logits[0];
    if (phase < 2 * passes()) {
      if (phase % 2 == 0) {
        attention.load(head, 0, thread, shared.queries);
      } else {
        attention.multiply(head, begin, thread, seen, shared.queries, logits);
      }
      return;
    }
    switch (phase - 2 * passes()) {
      case 0: attention.team_tops(thread); break;
      case 1: attention.tops(thread); break;
      case 2: attention.exponentials(thread, seen, logits); break;
      default: attention.sums(thread, seen, logits);
    }
  }
};

// What is added to scores is rounded to float32, which hides the last bits; here none are hidden.
TEST(PanelAttention, SoftmaxOfOnePositionToTheBit) {
  for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
    HostMachine machine(order);
    for (const Index group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
      for (const Index n : {1, 2, 31, 513, 2100}) {
        HeadShape shape;
        shape.n = n;
        shape.nq = 1;
        shape.d = 11;
        shape.group = group;
        const KvHead head = make_head(shape, static_cast<unsigned>(n));
        const HeadTensors<HostMachine> tensors(machine, head);
        std::vector<const float*> rows;
        for (const auto& q : tensors.q) {
          rows.push_back(q.data());
        }
        const Array<const float*, HostMachine> queries(machine,
                                                       std::span<const float* const>(rows));
        const Index panels = KeyPanels::panels(n);
        const Array<float, HostMachine> keys(machine, panels * KeyPanels::kLanes * shape.d);
        const Array<double, HostMachine> logits(machine, n * group);
        const Array<double, HostMachine> thread_most(machine, group * PanelAttention::kThreads);
        const Array<double, HostMachine> team_most(machine, group * PanelAttention::kTeam);
        const Array<double, HostMachine> most(machine, group);
        const Array<double, HostMachine> inverse(machine, group);
        const PanelAttention attention{{keys.data(), shape.d},
                                       queries.data(),
                                       group,
                                       head.scale,
                                       {logits.data(), nullptr},
                                       thread_most.data(),
                                       team_most.data(),
                                       most.data(),
                                       inverse.data()};
        machine.launch(FillPanels{tensors.k.data(), attention.panels, n}, panels);
        for (const int begin : {0, 32}) {
          SCOPED_TRACE(testing::Message() << "group " << group << " n " << n << ' ' << begin);
          machine.launch(AttendOnce{attention, n, begin}, 1);
          for (Index g = 0; g < group; ++g) {
            std::vector<double> x(static_cast<std::size_t>(n), 0.0);
            for (Index i = 0; i < n; ++i) {
              for (Index t = 0; t < shape.d; ++t) {
                const double q = static_cast<double>(head.q[static_cast<std::size_t>(g)].row(0)[t]);
                double& sum = x[static_cast<std::size_t>(i)];
                sum = std::fma(q * head.scale, static_cast<double>(head.k.row(i)[t]), sum);
              }
            }
            const double top = *std::max_element(x.begin(), x.end());
            double z = 0.0;
            for (Index i = 0; i < n; ++i) {
              const double e = exp_shared(x[static_cast<std::size_t>(i)] - top);
              ASSERT_EQ(e, logits.data()[i * group + g]);
              z += e;
            }
            ASSERT_EQ(1.0 / z, inverse.data()[g]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench
