// quant-kivi: codes against the definition, bytes as allocated, the format that a budget picks, and
// the stream.
#include "attention/quantize.hpp"
#include "read_rows.hpp"
#include "reference/quantize.hpp"
#include "stream_of.hpp"

namespace kvbench::test_quant_kivi {
namespace {

Compressed run(const KvHead& head, const std::vector<Index>& tokens, const Given& given,
               std::optional<Index> budget = {}) {
  return JobOf("quant-kivi", head, tokens, {}).run(budget, given);
}

Index bytes_of(const Compressed& c) {
  return *c.payload_bytes + c.aux_bytes;
}

TEST(Quantize, RowsEqualTheDefinitionAndBytesAreThoseAllocated) {
  std::mt19937_64 generator(1);
  for (const int bits : {2, 4, 8}) {
    for (const Index length : {1, 3, 8, 32, 37, 100}) {
      for (const Index group : {1, 5, 32, 200}) {
        for (const double size : {1e-6, 1.0, 500.0}) {
          const Matrix m = normal_matrix(4, length, size * static_cast<double>(length), generator);
          QuantizedRows q(bits, length, group);
          for (Index i = 0; i < 4; ++i) {
            q.append(m.view().row_span(i));
          }
          ASSERT_EQ(q.code_bytes(), QuantizedRows::code_bytes(bits, 4, length, group));
          ASSERT_EQ(q.scale_bytes(), QuantizedRows::scale_bytes(4, length, group));
          Matrix read(4, length);
          for (Index i = 0; i < 4; ++i) {
            q.read(i, {read.row(i), static_cast<std::size_t>(length)});
          }
          expect_rows(read, 0,
                      reference::quantized_rows(reference::rows_of(m), bits,
                                                static_cast<std::size_t>(group)));
        }
      }
    }
  }
  // By hand: 37 numbers at 2 bits in groups of 8 are four groups of 2 bytes and one of 5 numbers.
  EXPECT_EQ(QuantizedRows::code_bytes(2, 3, 37, 8), 3 * (4 * 2 + 2));
  EXPECT_EQ(QuantizedRows::scale_bytes(3, 37, 8), 3 * 5 * 4);
}

TEST(Quantize, ConstantHugeAndTinyGroups) {
  const std::vector<std::vector<float>> groups = {
      {0, 0, 0}, {3, 3, 3}, {1e30F, -1e30F, 0}, {1e-30F, -1e-30F, 2e-30F}, {65504, -65504, 1}};
  for (const std::vector<float>& g : groups) {
    QuantizedRows q(2, 3, 3);
    q.append(g);
    std::vector<float> read(3);
    q.read(0, read);
    for (const float x : read) {
      EXPECT_TRUE(std::isfinite(x));
    }
    if (g[0] == g[1]) {
      EXPECT_EQ(read, g);
    }
  }
}

TEST(QuantKivi, EqualsTheReference) {
  const KvHead head = make_head({.n = 200, .dv = 12, .key_offset = 2.0}, 3);
  const std::vector<Index> tokens = gappy(4, 190);
  const reference::Rows keys = reference::rows_at(head.k, tokens);
  for (const Given& given : settings("bits=2,4,8;group_size=7,32;residual=0,20,1000")) {
    const Compressed c = run(head, tokens, given);
    const int bits = std::stoi(given.at("bits"));
    const auto group = static_cast<std::size_t>(index_in(given, "group_size"));
    const std::size_t coded =
        tokens.size() - std::min<std::size_t>(tokens.size(), index_in(given, "residual"));
    ASSERT_EQ(c.held.tokens, std::vector<Index>(tokens.begin() + static_cast<std::ptrdiff_t>(coded),
                                                tokens.end()));
    ASSERT_EQ(c.made.k.rows(), static_cast<Index>(coded));
    ASSERT_EQ(c.quantized, static_cast<Index>(coded));
    for (std::size_t b = 0; b < coded; b += group) {
      const std::size_t end = std::min(b + group, coded);
      const reference::Rows channels = reference::transposed(
          {keys.begin() + static_cast<Index>(b), keys.begin() + static_cast<Index>(end)});
      expect_rows(c.made.k, static_cast<Index>(b),
                  reference::transposed(reference::quantized_rows(channels, bits, group)));
    }
    const std::vector<Index> first(tokens.begin(), tokens.begin() + static_cast<Index>(coded));
    expect_rows(c.made.v, 0,
                reference::quantized_rows(reference::rows_at(head.v, first), bits, group));
  }
}

TEST(QuantKivi, BytesByHand) {
  const KvHead head = make_head({.n = 300, .d = 64, .dv = 64, .dtype = DType::float16}, 4);
  // 236 tokens: 108 coded in three groups of 32 and one of 12, 128 exact.
  const Compressed c = run(head, positions(10, 246), {{"bits", "2"}});
  EXPECT_EQ(*c.payload_bytes, 128 * 256 + 64 * (3 * 8 + 3) + 108 * 16);
  EXPECT_EQ(c.aux_bytes, 4 * (64 * 4 + 108 * 2));
  EXPECT_EQ(diag_text(c, "coded"), "108");
}

// 2048 tokens of which 16 are sinks and 512 recent: all of them are kept, coded or not.
// 1 % of 65,536, of 65,537 and of the 37 beside a group of 100, rounded up.
TEST(Quantize, OutliersHaveIndicesThatReachTheirGroup) {
  EXPECT_EQ(outlier_bytes(0.01, 65536, 65536), 656 * 4);
  EXPECT_EQ(outlier_bytes(0.01, 65537, 65537), 656 * 6);
  EXPECT_EQ(outlier_bytes(0.01, 137, 100), 2 * 4);
  EXPECT_EQ(outlier_bytes(0.01, 70000, 32), 2188 * 4);
}

TEST(QuantKivi, CodedTokensAreKeptTokens) {
  const KvHead head = make_head({.n = 2048, .dtype = DType::float16}, 6);
  const Compressed c = run(head, positions(16, 1536), {{"bits", "4"}});
  EXPECT_EQ(c.held.tokens.size(), 128U);
  EXPECT_EQ(memory_figures(c, head, 1520).tokens_kept, 2048);
  StreamOf stream("quant-kivi", head, {{"bits", "4"}}, {0, 512});
  for (const Index end : {1, 97, 600, 1000, 2048}) {
    const Compressed view = stream.run(end);
    ASSERT_EQ(view.quantized, view.made.k.rows());
    ASSERT_EQ(memory_figures(view, head, stream.left()).tokens_kept, 2048);
  }
}

// The finest format that fits: more bits first, then smaller groups; never above the budget.
TEST(QuantKivi, TheBudgetPicksBitsThenGroups) {
  const KvHead head = make_head({.n = 400, .d = 64, .dv = 64, .dtype = DType::float16}, 5);
  const std::vector<Index> tokens = positions(0, 400);
  const Index full = 400 * head.pair_bytes();
  const Given no_residual = {{"residual", "0"}};
  const auto picked = [&](double rho) {
    const auto budget = static_cast<Index>(rho * static_cast<double>(full));
    const Compressed c = run(head, tokens, no_residual, budget);
    EXPECT_LE(bytes_of(c), budget);
    return diag_text(c, "bits") + "/" + diag_text(c, "group");
  };
  // Bits per number of 16: bits + 32/group for whole groups of tokens and of channels.
  EXPECT_EQ(picked(1.0), "8/32");
  EXPECT_EQ(picked(0.57), "8/32");
  EXPECT_EQ(picked(0.54), "8/64");
  EXPECT_EQ(picked(0.45), "4/32");
  EXPECT_EQ(picked(0.3), "4/64");
  EXPECT_EQ(picked(0.19), "2/32");
  EXPECT_EQ(picked(0.16), "2/64");
  double last = 0.0;
  for (const double rho : {0.6, 0.3, 0.15}) {  // fewer bytes, larger error
    const Compressed c =
        run(head, tokens, no_residual, static_cast<Index>(rho * static_cast<double>(full)));
    EXPECT_GT(std::stod(diag_text(c, "k_error")), last);
    last = std::stod(diag_text(c, "k_error"));
  }
  // 128 exact tokens of 400 alone are more.
  EXPECT_GT(needed_bytes([&] { run(head, tokens, {}, full / 10); }), 128 * head.pair_bytes());
}

TEST(QuantKivi, StreamsEqualPrefillOnWholeGroups) {
  const KvHead head = make_head({.n = 300, .nq = 300, .dtype = DType::float16}, 7);
  // 100 tokens at 2 bits in groups of 32 hold the most just before the third group is coded: two
  // groups (keys 8 x (8 + 4), values 32 x (2 + 4) bytes) and 32 exact tokens of 32 bytes. Just as
  // many where some of the tokens are sinks.
  for (const ExactTokens& exact : {ExactTokens{0, 200}, {20, 180}}) {
    EXPECT_EQ(needed_bytes([&] {
                StreamOf("quant-kivi", head, {{"residual", "0"}}, exact, 0);
              }),
              2 * (8 * 12 + 32 * 6) + 32 * 32);
  }
  // 64 + 20 tokens: two groups of 32 coded, 20 exact, as prefill with residual 20. Sinks are in no
  // group: the groups start with the first token behind them.
  const Given given = {{"bits", "4"}, {"residual", "20"}};
  for (const Index sink : {0, 5}) {
    const Compressed stream = StreamOf("quant-kivi", head, given, {sink, 0}).run(sink + 84);
    const Compressed prefill = run(head, positions(sink, sink + 84), given);
    EXPECT_EQ(stream.held.tokens, prefill.held.tokens);
    EXPECT_EQ(bytes_of(stream), bytes_of(prefill));
    EXPECT_TRUE(same_bits(stream.made.k, prefill.made.k));
    EXPECT_TRUE(same_bits(stream.made.v, prefill.made.v));
  }
}

}  // namespace
}  // namespace kvbench::test_quant_kivi
