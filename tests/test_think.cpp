// think against its reference: which channels go, ties, bytes and budgets, and as a quantizer.
#include "algorithms/shared/size.hpp"
#include "method_checks.hpp"
#include "reference/think.hpp"

namespace kvbench::test_think {
namespace {

HeadShape small(DType dtype = DType::float32) {
  const HeadShape shape{.n = 90, .nq = 90, .d = 12, .dv = 5, .group = 3, .dtype = dtype};
  return shape;
}

// Channels of different sizes in keys and in queries.
KvHead uneven_head(unsigned seed, DType dtype = DType::float32) {
  KvHead head = make_head(small(dtype), seed);
  std::mt19937_64 generator(seed + 100);
  std::vector<float> keys(12), queries(12);
  for (std::size_t c = 0; c < 12; ++c) {
    keys[c] = static_cast<float>(1 + generator() % 8) / 4.0F;
    queries[c] = static_cast<float>(1 + generator() % 8) / 4.0F;
  }
  for (Index i = 0; i < 90; ++i) {
    for (std::size_t c = 0; c < 12; ++c) {
      head.k.row(i)[c] *= keys[c];
      for (Matrix& q : head.q) {
        q.row(i)[c] *= queries[c];
      }
    }
  }
  return head;
}

reference::Rows window_of(const KvHead& head, Range window) {
  reference::Rows out;
  for (const Matrix& q : head.q) {
    const reference::Rows all = reference::rows_of(q);
    out.insert(out.end(), all.begin() + window.begin, all.begin() + window.end);
  }
  return out;
}

void expect_thinned(const Matrix& made, const Matrix& keys, const std::vector<Index>& rows,
                    const std::vector<Index>& channels) {
  ASSERT_EQ(made.rows(), static_cast<Index>(rows.size()));
  for (Index i = 0; i < made.rows(); ++i) {
    for (Index c = 0; c < made.cols(); ++c) {
      const bool stays = std::ranges::binary_search(channels, c);
      ASSERT_EQ(made.row(i)[c], stays ? keys.row(rows[i])[c] : 0.0F) << i << " " << c;
    }
  }
}

std::string ratio_of(Index dropped) {
  return std::to_string((static_cast<double>(dropped) + 0.5) / 12.0);
}

TEST(Think, EqualsTheReference) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    for (const auto& tokens : {positions(10, 58), gappy(3, 60)}) {
      const JobOf job("think", uneven_head(seed), tokens, {60, 84});
      for (const Index window : {1, 7, 24, 32}) {
        const Range used = {std::max<Index>(60, 84 - window), 84};
        for (const Index dropped : {1, 4, 6, 11}) {
          const Compressed c =
              job.run({}, {{"ratio", ratio_of(dropped)}, {"window", std::to_string(window)}});
          expect_thinned(c.made.k, job.head().k, tokens,
                         reference::thin_channels(
                             reference::rows_of(copy_rows(job.head().k, tokens)),
                             window_of(job.head(), used), static_cast<std::size_t>(dropped)));
          for (Index i = 0; i < c.made.v.rows(); ++i) {
            ASSERT_TRUE(
                std::equal(c.made.v.row(i), c.made.v.row(i) + 5, job.head().v.row(tokens[i])));
          }
          ASSERT_EQ(c.quantized, static_cast<Index>(tokens.size()));
          ASSERT_EQ(c.made.positions, tokens);
          ASSERT_EQ(diag_text(c, "channels"), std::to_string(12 - dropped));
        }
      }
    }
  }
}

// Two keys (1, 2, 0, 3), (1, -2, 0, 1) and one query (2, 1, 9, 1) in each of two heads: channels
// weigh 4, 4, 0, 5. Of the equal ones the higher goes first.
TEST(Think, ByHand) {
  KvHead head;
  head.k = Matrix(2, 4);
  std::ranges::copy(std::vector<float>{1, 2, 0, 3, 1, -2, 0, 1}, head.k.data());
  head.v = Matrix(2, 1);
  for (int g = 0; g < 2; ++g) {
    Matrix& q = head.q.emplace_back(2, 4);
    std::ranges::copy(std::vector<float>{9, 9, 9, 9, 2, 1, 9, 1}, q.data());
  }
  const JobOf job("think", head, {0, 1}, {1, 2});
  const auto kept = [&](const char* ratio) { return job.run({}, {{"ratio", ratio}}).made.k; };
  expect_thinned(kept("0.25"), head.k, {0, 1}, {0, 1, 3});
  expect_thinned(kept("0.5"), head.k, {0, 1}, {0, 3});
  expect_thinned(kept("0.75"), head.k, {0, 1}, {3});
  expect_thinned(kept("0.99"), head.k, {0, 1}, {3});
  // floor(0.24 * 4) = 0: nothing is dropped, and all is held as it is.
  const Compressed whole = job.run({}, {{"ratio", "0.24"}});
  EXPECT_EQ(whole.held.tokens, (std::vector<Index>{0, 1}));
  EXPECT_EQ(whole.aux_bytes, 1);
  EXPECT_EQ(middle_bytes_of(whole, head), 2 * 5 * 4 + 1);
  // 2 tokens of 3 channels and 1 value, 4 bytes each, and a mask of 4 bits.
  const Compressed three = job.run({}, {{"ratio", "0.25"}});
  EXPECT_EQ(three.payload_bytes, 2 * 4 * 4);
  EXPECT_EQ(three.aux_bytes, 1);
  // |(2, -2)| of |(1, 2, 0, 3, 1, -2, 0, 1)|.
  EXPECT_NEAR(diag_number(job.run({}, {{"ratio", "0.5"}}), "k_error"), std::sqrt(8.0 / 20.0), 1e-6);
}

TEST(Think, BudgetsDropTheFewestChannels) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    const Index element = bytes_per_element(dtype);
    const JobOf job("think", uneven_head(5, dtype), positions(10, 60), {60, 84});
    for (Index dropped = 0; dropped < 12; ++dropped) {
      const Index bytes = 50 * (12 - dropped + 5) * element + 2;
      for (const Index budget : {bytes, bytes + 50 * element - 1}) {
        const Compressed c = job.run(budget);
        ASSERT_EQ(diag_text(c, "channels"), std::to_string(12 - dropped));
        ASSERT_EQ(middle_bytes_of(c, job.head()), bytes);
      }
    }
    EXPECT_EQ(needed_bytes([&] { job.run(50 * 6 * element + 1); }), 50 * 6 * element + 2);
    EXPECT_THROW(job.run({}), InputError);
    EXPECT_THROW(job.params({{"ratio", "1"}}), InputError);
    EXPECT_THROW(job.params({{"ratio", "-0.1"}}), InputError);
  }
  const JobOf empty("think", uneven_head(5), {}, {60, 84});
  EXPECT_EQ(empty.run(0).made.k.rows(), 0);
}

TEST(Think, NoQueryKeepsTheFirstChannels) {
  const JobOf job("think", uneven_head(7), positions(10, 60), {84, 84});
  expect_thinned(job.run({}, {{"ratio", ratio_of(8)}}).made.k, job.head().k, job.tokens(),
                 {0, 1, 2, 3});
}

// As the Q of A@Q: the entries' own keys, at 0.5 unless given.
TEST(Think, CodesEntries) {
  const Quantizer& quantizer = find_method("think").quantizer.value();
  const JobOf job("think", uneven_head(8, DType::float16), positions(10, 60), {60, 84});
  std::mt19937_64 generator(3);
  KeptEntries entries;
  entries.k = normal_matrix(9, 12, 3.0, generator);
  entries.v = normal_matrix(9, 5, 3.0, generator);
  std::vector<Index> rows = positions(0, 9);
  for (const Given& given : {Given{}, Given{{"ratio", "0.8"}, {"window", "5"}}}) {
    const Params params("h2o@think", quantizer.params, given);
    const Index dropped = given.empty() ? 6 : 9;
    const Range window = {given.empty() ? Index{60} : Index{79}, 84};
    const CodedEntries coded = quantizer.code(job.task(), entries, params);
    expect_thinned(
        coded.k, entries.k, rows,
        reference::thin_channels(reference::rows_of(copy_rows(entries.k, rows)),
                                 window_of(job.head(), window), static_cast<std::size_t>(dropped)));
    EXPECT_TRUE(same_bits(coded.v, entries.v));
    EXPECT_EQ(coded.bytes.codes, 9 * (12 - dropped + 5) * 2);
    EXPECT_EQ(coded.bytes.scales, 2);
    Index before = 0;
    for (Index count = 0; count < 20; ++count) {
      const Index bytes = quantizer.bytes(shape_of(job.head()), count, params);
      EXPECT_EQ(bytes, count == 0 ? 0 : count * (12 - dropped + 5) * 2 + 2);
      EXPECT_GE(bytes, before);
      before = bytes;
    }
  }
  EXPECT_EQ(quantizer.needs_positions, nullptr);
}

}  // namespace
}  // namespace kvbench::test_think
