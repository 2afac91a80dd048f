#include <cstdlib>

#include "cli/commands/session.h"
#include "cli/framework/interrupt.h"
#include "glog/logging.h"
#include "lib/security/core_dumps.h"

int main(int argc, char** argv) {
  muster::cli::Interrupt interrupt;  // before any other thread
  FLAGS_logtostderr = true;
  // What kernels were chosen, say, is told to who asks for it.
  if (std::getenv("GLOG_minloglevel") == nullptr) FLAGS_minloglevel = google::GLOG_WARNING;
  google::InitGoogleLogging(argv[0]);
  muster::ForbidCoreDumps();  // tokens and keys of a person
  muster::cli::Session session;
  session.interrupt = &interrupt;
  return muster::cli::RunCommandLine(argc, argv, session);
}
