// Abnormal ends of the process: uncaught exceptions (in a thread or parallel region, out of memory)
// and libraries that call exit(), such as OpenMP when it cannot create a thread.
#pragma once

namespace kvbench {

/// Makes abnormal ends exit with code 3 and one line on stderr, after removing temporary files;
/// written rows stay. Ignores SIGXFSZ, so that writes beyond the file size limit fail like those on
/// a full disk. Must be called first.
void handle_abnormal_ends();

/// Marks the coming exit as a normal one and returns `code`.
int normal_end(int code);

}  // namespace kvbench
