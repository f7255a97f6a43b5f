// Seeded damage to the bytes of a file, and the time of its readers, for their tests.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace kvbench::testing_replay {

using Random = std::mt19937_64;

inline std::size_t below(Random& random, std::size_t count) {
  return static_cast<std::size_t>(random() % count);
}

template <class List>
const auto& one_of(Random& random, const List& list) {
  return list[below(random, std::size(list))];
}

/// One to four of a kind: bits, bytes, fields, splices, cuts. Does nothing to less than 600 bytes.
inline void damage_bytes(Random& random, std::string& bytes) {
  const auto place = [&](std::size_t length) { return below(random, bytes.size() - length); };
  const std::size_t kind = below(random, 6);
  const std::size_t times = 1 + below(random, 4);
  for (std::size_t i = 0; i < times && bytes.size() > 600; ++i) {
    const std::size_t length = 1 + below(random, 64);
    switch (kind) {
      case 0: bytes[place(1)] ^= static_cast<char>(1 << below(random, 8)); break;
      case 1: bytes[place(1)] = static_cast<char>(random()); break;
      case 2: {  // a field of all zeros, all ones, or a small number
        const std::size_t width = std::size_t{1} << below(random, 4);
        const std::uint64_t value = one_of(
            random, std::array{std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{random() % 300}});
        bytes.replace(place(8), width, reinterpret_cast<const char*>(&value), width);
        break;
      }
      case 3: {
        const std::string part = bytes.substr(place(length), length);
        bytes.replace(place(length), length, part);
        break;
      }
      case 4: bytes.erase(place(length), length); break;
      default: bytes.resize(1 + below(random, bytes.size())); break;
    }
  }
}

/// Of processor time, for one damaged file. An object may take 2 s, twice; without that limit HDF5
/// runs for ever on some files.
inline constexpr double kMaxSeconds = 30;

/// Processor time of this process and of those that it waited for.
inline double seconds_used() {
  double all = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(who, &used);
    for (const timeval& t : {used.ru_utime, used.ru_stime}) {
      all += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
  }
  return all;
}

/// A number that the environment gives.
inline std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* given = std::getenv(variable);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

}  // namespace kvbench::testing_replay
