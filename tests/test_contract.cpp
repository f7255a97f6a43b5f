// check_compressed: every result that the contract allows, and every breach of it.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include "replay/job.hpp"

namespace kvbench::test_contract {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T, class... X>
void set(std::vector<T>& v, X... x) {
  v = {static_cast<T>(x)...};
}

class ContractTest : public ::testing::Test {
 protected:
  ContractTest() {
    head_.k = Matrix(8, 4);
    head_.v = Matrix(8, 3);
    head_.q = {Matrix(8, 4)};
  }

  Task task() const { return {head_, tokens_, std::nullopt, {0, 8}, {}, Rng()}; }

  static Compressed good() {
    Compressed c;
    c.held.tokens = {2, 5};
    c.held.weights = {1.0F, 0.0F};
    c.made.k = Matrix(2, 4);
    c.made.v = Matrix(2, 3);
    c.made.weights = {2.0F, 0.5F};
    c.aux_bytes = 16;
    c.payload_bytes = 0;
    Denominator d;
    d.held.tokens = {3};
    d.made.k = Matrix(1, 4);
    c.denominator = d;
    return c;
  }

  KvHead head_;
  std::vector<Index> tokens_{2, 3, 5, 6};
};

TEST_F(ContractTest, AcceptsWhatIsAllowed) {
  EXPECT_NO_THROW(check_compressed(good(), task()));
  EXPECT_NO_THROW(check_compressed(Compressed{}, task()));
  Compressed all;
  all.held.tokens = tokens_;
  all.held.common = 3.5F;
  EXPECT_NO_THROW(check_compressed(all, task()));
  all.denominator = Denominator{};
  all.denominator->held.tokens = tokens_;
  all.denominator->held.weights = {1, 2, 3, 4};
  all.denominator->same_keys = true;
  EXPECT_NO_THROW(check_compressed(all, task()));
}

TEST_F(ContractTest, RefusesEveryBreach) {
  const std::vector<std::pair<const char*, std::function<void(Compressed&)>>> breaches{
      {"held out of order", [](auto& c) { set(c.held.tokens, 5, 2); }},
      {"held twice", [](auto& c) { set(c.held.tokens, 2, 2); }},
      {"held outside the task", [](auto& c) { set(c.held.tokens, 2, 4); }},
      {"held before the prompt", [](auto& c) { set(c.held.tokens, -1, 2); }},
      {"one weight for two", [](auto& c) { c.held.weights = {1.0F}; }},
      {"negative weight", [](auto& c) { c.held.weights[1] = -1.0F; }},
      {"NaN weight", [](auto& c) { c.held.weights[0] = kNan; }},
      {"infinite weight", [](auto& c) { c.held.weights[1] = kInfinity; }},
      {"NaN common weight", [](auto& c) { c.held.common = kNan; }},
      {"negative common weight", [](auto& c) { c.held.common = -0.5F; }},
      {"infinite common weight", [](auto& c) { c.held.common = kInfinity; }},
      {"made key too wide", [](auto& c) { c.made.k = Matrix(2, 5); }},
      {"made value too wide", [](auto& c) { c.made.v = Matrix(2, 4); }},
      {"fewer made values", [](auto& c) { c.made.v = Matrix(1, 3); }},
      {"made values alone",
       [](auto& c) {
         c.made.k = Matrix();
         c.made.weights.clear();
       }},
      {"made weights too many", [](auto& c) { set(c.made.weights, 1, 1, 1); }},
      {"made weight negative", [](auto& c) { c.made.weights[0] = -1.0F; }},
      {"made key NaN", [](auto& c) { c.made.k.row(1)[3] = kNan; }},
      {"made value NaN", [](auto& c) { c.made.v.row(1)[2] = kNan; }},
      {"negative aux", [](auto& c) { c.aux_bytes = -1; }},
      {"negative transient", [](auto& c) { c.transient_bytes = -1; }},
      {"negative payload", [](auto& c) { c.payload_bytes = -1; }},
      {"denominator out of order", [](auto& c) { set(c.denominator->held.tokens, 5, 3); }},
      {"denominator outside the task", [](auto& c) { c.denominator->held.tokens = {7}; }},
      {"denominator weight", [](auto& c) { c.denominator->held.weights = {-1.0F}; }},
      {"denominator weights", [](auto& c) { set(c.denominator->held.weights, 1, 1); }},
      {"denominator key too wide", [](auto& c) { c.denominator->made.k = Matrix(1, 3); }},
      {"denominator key NaN", [](auto& c) { c.denominator->made.k.row(0)[0] = kNan; }},
      {"denominator made weight", [](auto& c) { c.denominator->made.weights = {kNan}; }},
      {"other keys called the same", [](auto& c) { c.denominator->same_keys = true; }},
  };
  for (const auto& [what, make] : breaches) {
    Compressed c = good();
    make(c);
    EXPECT_THROW(check_compressed(c, task()), std::logic_error) << what;
  }
}

}  // namespace
}  // namespace kvbench::test_contract
