// Heads of every element type, and machines to try --gpu-math fast on: what its tests share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention/fast_attention.hpp"
#include "core/float16.hpp"
#include "make_head.hpp"

namespace kvbench::testing_fast {

inline constexpr DType kTypes[] = {DType::float16, DType::bfloat16, DType::float32};

struct Case {
  Index n, nq, d, dv, group;
};

inline KvHead head_of(const Case& c, DType type, unsigned seed, double key_norm = 8.0) {
  HeadShape shape;
  shape.n = c.n;
  shape.nq = c.nq;
  shape.d = c.d;
  shape.dv = c.dv;
  shape.group = c.group;
  shape.key_norm = key_norm;
  shape.dtype = type;
  KvHead head = make_head(shape, seed);
  round_to(type, head.k.data(), c.n * c.d);
  round_to(type, head.v.data(), c.n * c.dv);
  for (Matrix& q : head.q) {
    round_to(type, q.data(), c.nq * c.d);
  }
  return head;
}

inline std::vector<double> flat(const MatrixD& m) {
  return {m.data(), m.data() + m.rows() * m.cols()};
}

// f of a machine and its tensors, to the same bits in any order and with any scratch.
template <class F>
auto on_every_machine(const KvHead& head, const F& f) {
  const auto run = [&](HostMachine::Order order, std::size_t scratch) {
    HostMachine machine(order);
    machine.set_scratch_bytes(scratch);
    const HeadTensors<HostMachine> tensors(machine, head);
    return f(machine, tensors, FastScales(machine, tensors));
  };
  const auto whole = run(HostMachine::Order::forward, std::size_t{1} << 28);
  EXPECT_TRUE(run(HostMachine::Order::backward, std::size_t{1} << 28) == whole) << "warps race";
  EXPECT_TRUE(run(HostMachine::Order::backward, 1) == whole) << "scratch";
  return whole;
}

// False for NaN.
inline void expect_near(double got, double want, double off, const char* what) {
  if (got == want) {
    return;  // also -inf
  }
  EXPECT_TRUE(std::abs(got - want) <= off) << what << ": " << got << " " << want;
}

}  // namespace kvbench::testing_fast
