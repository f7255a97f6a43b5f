// Drives a fuzz target without libFuzzer, and makes its corpus: run COUNT FILE... makes the
// target's input of each file and hands it over whole, cut at every length up to some KB, and COUNT
// times with seeded damage. run --write FOLDER FILE... writes the inputs there.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "input.hpp"

namespace {

using kvbench::fuzz::Bytes;

void damage(Bytes& bytes, std::mt19937_64& random) {
  constexpr std::size_t kWidth = 8;
  for (std::uint64_t times = 1 + random() % 4; times > 0; --times) {
    const std::size_t at = random() % (bytes.size() - kWidth);
    switch (random() % 4) {
      case 0: bytes[at] ^= static_cast<std::uint8_t>(1U << random() % 8); break;
      case 1: bytes[at] = static_cast<std::uint8_t>(random() % 8); break;
      case 2:
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), kWidth,
                    static_cast<std::uint8_t>(random() % 2 == 0 ? 0 : 255));
        break;
      default:
        std::copy_n(bytes.data() + random() % (bytes.size() - kWidth), kWidth, bytes.data() + at);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: run COUNT FILE... | run --write FOLDER FILE...\n";
    return 2;
  }
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words[0] == "--write") {
    for (std::size_t i = 2; i < words.size(); ++i) {
      const Bytes bytes = kvbench::fuzz::input_of(words[i]);
      std::ofstream out(words[1] + "/" + std::to_string(i), std::ios::binary);
      out.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
    }
    return 0;
  }
  const std::uint64_t count = std::strtoull(words[0].c_str(), nullptr, 10);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const Bytes whole = kvbench::fuzz::input_of(words[i]);
    for (std::size_t size = 0; size <= std::min<std::size_t>(whole.size(), 8000); ++size) {
      LLVMFuzzerTestOneInput(
          Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)).data(), size);
    }
    std::mt19937_64 random(i);
    for (std::uint64_t n = 0; n < count; ++n) {
      Bytes bytes = whole;
      damage(bytes, random);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
  }
  return 0;
}
