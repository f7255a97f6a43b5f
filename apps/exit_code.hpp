// Exit codes of docs/cli.md, and how a subcommand ends with one that is not an error.
#pragma once

namespace kvbench {

enum ExitCode {
  kExitOk = 0,
  kExitFailedRows = 1,
  kExitBadInput = 2,
  kExitIo = 3,
  kExitInterrupted = 130,
};

/// Thrown by a subcommand that has already printed its message.
struct Exit {
  int code;
};

}  // namespace kvbench
