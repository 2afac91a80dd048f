// How a job file writes what the proto names: enum values, and messages by their kind alone.
#pragma once

#include <map>
#include <string>

#include "google/protobuf/descriptor.h"

namespace muster {

// A value as job files write it: in lower case, without what all of its enum begin with ("int8" for
// COMPRESSION_INT8).
std::string EnumName(const google::protobuf::EnumValueDescriptor& value);

// The values of an enum by these names, all but UNSPECIFIED.
std::map<std::string, int> EnumNames(const google::protobuf::EnumDescriptor& type);

// A message with an enum "kind" may be written as the kind alone: "compression: int8". The field,
// or null.
const google::protobuf::FieldDescriptor* KindField(const google::protobuf::Descriptor& type);

}  // namespace muster
