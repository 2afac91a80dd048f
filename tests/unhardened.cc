// What tests/hardening_test.cc must find: its BUILD target undoes whatever hardens our programs.
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  char copy[64];
  std::strcpy(copy, argv[argc - 1]);  // with FORTIFY it would be __strcpy_chk, with a canary behind
  return std::puts(copy) < 0 ? 1 : 0;
}
