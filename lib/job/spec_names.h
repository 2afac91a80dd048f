// Names that a job file uses for proto names: enum values, and messages that are written by their
// kind.
#pragma once

#include <map>
#include <string>

#include "google/protobuf/descriptor.h"

namespace muster {

// Returns the value's name in job files: in lower case, without the prefix that all values of the
// enum share ("int8" for COMPRESSION_INT8).
std::string EnumName(const google::protobuf::EnumValueDescriptor& value);

// Returns the values of an enum by these names, without UNSPECIFIED.
std::map<std::string, int> EnumNames(const google::protobuf::EnumDescriptor& type);

// A message with an enum "kind" may be written as the kind alone: "compression: int8". Returns that
// field, or null if the message has none.
const google::protobuf::FieldDescriptor* KindField(const google::protobuf::Descriptor& type);

}  // namespace muster
