// Protocols of a replay, and the queries that methods may score with.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvbench {

/// `prefill` compresses the middle once; under `stream` tokens arrive one by one; under `retrieval`
/// the cache stays whole and each evaluated query reads a part of the middle.
enum class Protocol : std::uint8_t { prefill, stream, retrieval };

inline constexpr std::array kProtocols{Protocol::prefill, Protocol::stream, Protocol::retrieval};

constexpr std::string_view name(Protocol p) {
  switch (p) {
    case Protocol::prefill: return "prefill";
    case Protocol::stream: return "stream";
    case Protocol::retrieval: return "retrieval";
  }
  return "?";
}

/// Queries that methods may score with: those before the evaluated queries, or all.
enum class Scores : std::uint8_t { past, all };

constexpr std::string_view name(Scores s) {
  return s == Scores::all ? "all" : "past";
}

}  // namespace kvbench
