// Checks the compiled kernels in which a step spends its time: 16 bytes per load, tensor cores, no
// spills. Reads PTX, the messages of ptxas and, if the toolkit's cuobjdump and nvdisasm are
// installed, the machine code.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace muster::kernels::cuda::machine_code_test {
namespace {

const char* const kFiles[] = {"activation", "attention_tiles", "batch_norm", "layer_norm",
                              "pooling"};

// A kernel with vectors of 16 bytes, named by its file and a part of its mangled name.
struct Kernels {
  const char* file;
  const char* name;
};
const Kernels kVectorised[] = {
    {"activation", "4Map1I13__nv_bfloat16"},
    {"activation", "4Map2I13__nv_bfloat16"},
    {"activation", "15AccumulateTerms"},
    {"batch_norm", "10SumColumnsILi2ELi8E"},
    {"batch_norm", "10SumColumnsILi2ELi4E"},
    {"batch_norm", "10ForVectorsILi8E"},
    {"batch_norm", "10ForVectorsILi4E"},
    {"layer_norm", "24NormaliseRowsInRegistersI13__nv_bfloat16Li4E"},
    {"layer_norm", "13NormaliseRowsI13__nv_bfloat16Li8E"},
    {"layer_norm", "8GradRowsI13__nv_bfloat16Li8E"},
    {"layer_norm", "10SumColumnsILi2ELi8E"},
    {"attention_tiles", "7Forward"},
    {"attention_tiles", "9GradQuery"},
    {"attention_tiles", "7GradKey"},
};

std::string Read(const std::string& name) {
  std::ifstream file("kernels/cuda/" + name);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

int Count(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// The parts of a text that begin with `head`, up to the next.
std::vector<std::string> Split(const std::string& text, const std::string& head) {
  std::vector<std::string> parts;
  size_t at = text.find(head);
  while (at != std::string::npos) {
    const size_t next = text.find(head, at + 1);
    parts.push_back(text.substr(at, next - at));
    at = next;
  }
  return parts;
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// Calls f(kernel) for each kernel with `name` in its name; there must be at least one.
template <typename F>
void ForKernels(const std::vector<std::string>& kernels, const std::string& name, F f) {
  int found = 0;
  for (const std::string& kernel : kernels) {
    if (FirstLine(kernel).find(name) == std::string::npos) continue;
    SCOPED_TRACE(FirstLine(kernel));
    f(kernel);
    ++found;
  }
  EXPECT_GT(found, 0) << "no kernel has " << name << " in its name";
}

TEST(MachineCodeTest, NoKernelUsesLocalMemory) {
  for (const std::string file : kFiles) {
    const std::string said = Read(file + ".ptxas");
    const std::vector<std::string> kernels = Split(said, "Compiling entry function");
    EXPECT_FALSE(kernels.empty()) << said;
    for (const std::string& kernel : kernels) {
      EXPECT_EQ(Count(kernel, " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), 1)
          << kernel;
    }
  }
}

TEST(MachineCodeTest, VectorsAreLoadedByOneInstruction) {
  for (const auto& [file, name] : kVectorised) {
    const std::string ptx = Read(std::string(file) + ".ptx");
    ForKernels(Split(ptx, ".entry"), name, [](const std::string& kernel) {
      EXPECT_GT(Count(kernel, ".v4.") + Count(kernel, "cp.async"), 0);
    });
  }
}

TEST(MachineCodeTest, AttentionMultipliesOnTensorCores) {
  const std::string ptx = Read("attention_tiles.ptx");
  for (const char* name : {"7Forward", "9GradQuery", "7GradKey"}) {
    ForKernels(Split(ptx, ".entry"), name, [](const std::string& kernel) {
      EXPECT_GE(Count(kernel, "mma.sync"), 32);
      EXPECT_GT(Count(kernel, "ldmatrix"), 0);
    });
  }
}

// The output of a command; empty if it fails.
std::string OutputOf(const std::string& command) {
  std::string output;
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  std::array<char, 1 << 16> piece;
  while (const size_t n = std::fread(piece.data(), 1, piece.size(), pipe)) {
    output.append(piece.data(), n);
  }
  return pclose(pipe) == 0 ? output : "";
}

TEST(MachineCodeTest, HopperLoads128BitsAndTouchesNoLocalMemory) {
  if (OutputOf("cuobjdump --version").empty() || OutputOf("nvdisasm --version").empty()) {
    GTEST_SKIP() << "cuobjdump and nvdisasm are not in PATH";
  }
  for (const std::string file : kFiles) {
    const std::string code = OutputOf("cuobjdump -sass kernels/cuda/" + file + ".cubin");
    ASSERT_FALSE(code.empty()) << file;
    EXPECT_EQ(Count(code, "STL"), 0) << file;
    EXPECT_EQ(Count(code, "LDL"), 0) << file;
    for (const auto& [of_file, name] : kVectorised) {
      if (file != of_file) continue;
      ForKernels(Split(code, "Function :"), name, [&](const std::string& kernel) {
        EXPECT_GT(Count(kernel, "LDG.E.128") + Count(kernel, "LDGSTS.E"), 0);
        EXPECT_GE(Count(kernel, "HMMA.16816.F32"), file == "attention_tiles" ? 32 : 0);
      });
    }
  }
}

}  // namespace
}  // namespace muster::kernels::cuda::machine_code_test
