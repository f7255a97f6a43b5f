// Damage to traces with checksums: what is read is what was written, or nothing is read.
// KVBENCH_MUTATIONS: how many (1000); KVBENCH_MUTATION: this one alone, which stays in the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "damage.hpp"
#include "files.hpp"
#include "trace/reader.hpp"
#include "trace/writer.hpp"
#include "trace_files.hpp"

namespace kvbench::test_trace_changed_values {
namespace {

using testing_replay::damage_bytes;
using testing_replay::number_of;
using testing_replay::Random;
using testing_replay::read_bytes;
using testing_replay::write_bytes;
using testing_traces::planted_trace;
using testing_traces::Storage;
using testing_traces::temporary_path;

// All numbers that a trace holds.
std::vector<float> numbers_of(const std::string& path) {
  const TraceReader reader(path);
  std::vector<float> out;
  const auto add = [&](const Matrix& m) {
    out.insert(out.end(), m.data(), m.data() + m.rows() * m.cols());
  };
  for (std::size_t p = 0; p < reader.meta().prompts.size(); ++p) {
    const PromptMeta& prompt = reader.meta().prompts[p];
    for (const std::int32_t id : reader.read_token_ids(p)) {
      out.push_back(static_cast<float>(id));
    }
    for (std::size_t l = 0; l < prompt.layers.size(); ++l) {
      const LayerMeta& layer = prompt.layers[l];
      for (Index h = 0; h < layer.kv_heads; ++h) {
        const KvHead head = reader.read_head(p, l, h);
        add(head.k);
        add(head.v);
        std::ranges::for_each(head.q, add);
        add(reader.read_o_proj(p, l, h));
      }
      const std::vector<float> norms = reader.read_residual_norm(p, l);
      out.insert(out.end(), norms.begin(), norms.end());
      if (const auto rope = reader.read_rope(p, l)) {
        add(rope->cos);
        add(rope->sin);
      }
    }
  }
  return out;
}

Matrix random_matrix(Random& random, Index rows, Index cols) {
  Matrix out(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    out.data()[i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 256.0F;
  }
  return out;
}

// Of kvbench's own writer: chunks with checksums, and SHA-256 of all elements.
std::string written_trace(DType type, int gzip_level) {
  const std::string path = temporary_path("written.h5");
  Random random(5);
  TraceHeader header;
  header.dtype = type;
  header.rope = "post";
  header.gzip_level = gzip_level;
  TraceWriter writer(path, header);
  std::vector<std::int32_t> ids(40);
  std::ranges::generate(ids, [&] { return static_cast<std::int32_t>(random() % 1000); });
  writer.begin_prompt("a", 40, "", ids);
  LayerSpec layer;
  layer.layer = 3;
  layer.q_heads = 4;
  layer.kv_heads = 2;
  layer.nq = 10;
  layer.d = 8;
  layer.dv = 8;
  writer.begin_layer(layer);
  for (Index h = 0; h < 4; ++h) {
    writer.write_q(h, random_matrix(random, 10, 8).view());
  }
  for (Index h = 0; h < 2; ++h) {
    writer.write_k(h, random_matrix(random, 40, 8).view());
    writer.write_v(h, random_matrix(random, 40, 8).view());
  }
  writer.write_o_proj(random_matrix(random, 6, 32).view());
  std::vector<float> norms(10);
  std::ranges::generate(norms, [&] { return static_cast<float>(1 + random() % 100); });
  writer.write_residual_norm(norms);
  RopeTables tables;
  tables.cos = random_matrix(random, 560, 4);
  tables.sin = random_matrix(random, 560, 4);
  writer.write_rope(tables);
  writer.close();
  return read_bytes(path);
}

// Damage gives the same numbers or an error: never other numbers.
TEST(TraceMutations, ChangedValuesAreSeen) {
  const std::array files{
      written_trace(DType::float16, 4), written_trace(DType::float32, 0),
      written_trace(DType::bfloat16, 1),
      // Without the attribute sha256, and without any checksum: counted.
      read_bytes(planted_trace("summed.h5", DType::float16, testing_traces::small_shape(),
                               [] {
                                 Storage summed = testing_traces::packed_storage();
                                 summed.settings.push_back([](hid_t p) { H5Pset_fletcher32(p); });
                                 return summed;
                               }())),
      read_bytes(planted_trace("plain.h5", DType::float16, testing_traces::small_shape()))};
  constexpr std::size_t kWithDigests = 3;
  std::vector<std::vector<float>> numbers;
  const std::string path = temporary_path("damaged.h5");
  for (const std::string& bytes : files) {
    write_bytes(path, bytes);
    numbers.push_back(numbers_of(path));
  }
  std::array<std::array<std::uint64_t, 3>, files.size()> counts{};  // same, refused, other
  const std::uint64_t count = number_of("KVBENCH_MUTATIONS", 1000);
  const std::uint64_t alone = number_of("KVBENCH_MUTATION", count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (alone != count && i != alone) {
      continue;
    }
    Random random(1'000'000 + i);
    const std::size_t file = i % files.size();
    std::string bytes = files[file];
    damage_bytes(random, bytes);
    write_bytes(path, bytes);
    try {
      // By bits: a NaN is refused, and zeros of another sign are other numbers.
      const std::vector<float> got = numbers_of(path);
      const bool same = got.size() == numbers[file].size() &&
                        std::memcmp(got.data(), numbers[file].data(), got.size() * 4) == 0;
      ++counts[file][same ? 0 : 2];
      EXPECT_TRUE(same || file >= kWithDigests) << "mutation " << i << " changed values silently";
    } catch (const InputError&) {
      ++counts[file][1];
    }
  }
  for (const auto& [same, refused, other] : counts) {
    std::cout << same << " read alike, " << refused << " refused, " << other << " read otherwise\n";
  }
  if (count >= 1000 && alone == count) {
    for (std::size_t file = 0; file < files.size(); ++file) {
      EXPECT_GT(counts[file][0], count / 100) << file;
      EXPECT_GT(counts[file][1], count / 100) << file;
    }
    EXPECT_GT(counts.back()[2], count / 100) << "without checksums damage goes unseen";
  }
}

}  // namespace
}  // namespace kvbench::test_trace_changed_values
