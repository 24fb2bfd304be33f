// Graphs that training is made of, as text.
#pragma once

namespace trainc::testing {

inline constexpr const char* kLayerNorm = R"(%0 = input index=0 : f32[5,7,33]
%1 = reduce %0 kind=sum axes=[2] : f32[5,7]
%2 = constant value=0.03030303120613098 : f32[]
%3 = reshape %2 : f32[1,1]
%4 = broadcast %3 : f32[5,7]
%5 = mul %1 %4 : f32[5,7]
%6 = reshape %5 : f32[5,7,1]
%7 = broadcast %6 : f32[5,7,33]
%8 = sub %0 %7 : f32[5,7,33]
%9 = mul %8 %8 : f32[5,7,33]
%10 = reduce %9 kind=sum axes=[2] : f32[5,7]
%11 = mul %10 %4 : f32[5,7]
%12 = rsqrt %11 : f32[5,7]
%13 = reshape %12 : f32[5,7,1]
%14 = broadcast %13 : f32[5,7,33]
%15 = mul %8 %14 : f32[5,7,33]
%16 = input index=1 : f32[33]
%17 = reshape %16 : f32[1,1,33]
%18 = broadcast %17 : f32[5,7,33]
%19 = mul %15 %18 : f32[5,7,33]
%20 = input index=2 : f32[33]
%21 = reshape %20 : f32[1,1,33]
%22 = broadcast %21 : f32[5,7,33]
%23 = add %19 %22 : f32[5,7,33]
return %23 %5 %12
)";

// Gradient of the input: (g - mean(g) - n * mean(g * n)) * rstd, where g = gradient * weight, n = (x - mean) * rstd.
inline constexpr const char* kLayerNormBackward = R"(%0 = input index=0 : f32[35,33]
%1 = input index=1 : f32[35,33]
%2 = input index=2 : f32[35]
%3 = input index=3 : f32[35]
%4 = input index=4 : f32[33]
%5 = reshape %4 : f32[1,33]
%6 = broadcast %5 : f32[35,33]
%7 = mul %0 %6 : f32[35,33]
%8 = reshape %2 : f32[35,1]
%9 = broadcast %8 : f32[35,33]
%10 = sub %1 %9 : f32[35,33]
%11 = reshape %3 : f32[35,1]
%12 = broadcast %11 : f32[35,33]
%13 = mul %10 %12 : f32[35,33]
%14 = reduce %7 kind=sum axes=[1] : f32[35]
%15 = mul %7 %13 : f32[35,33]
%16 = reduce %15 kind=sum axes=[1] : f32[35]
%17 = reshape %14 : f32[35,1]
%18 = broadcast %17 : f32[35,33]
%19 = reshape %16 : f32[35,1]
%20 = broadcast %19 : f32[35,33]
%21 = mul %13 %20 : f32[35,33]
%22 = sub %7 %18 : f32[35,33]
%23 = sub %22 %21 : f32[35,33]
%24 = mul %23 %12 : f32[35,33]
return %24
)";

inline constexpr const char* kSoftmax = R"(%0 = input index=0 : f32[2,3,9,20]
%1 = reduce %0 kind=max axes=[3] : f32[2,3,9]
%2 = reshape %1 : f32[2,3,9,1]
%3 = broadcast %2 : f32[2,3,9,20]
%4 = sub %0 %3 : f32[2,3,9,20]
%5 = exp %4 : f32[2,3,9,20]
%6 = reduce %5 kind=sum axes=[3] : f32[2,3,9]
%7 = reshape %6 : f32[2,3,9,1]
%8 = broadcast %7 : f32[2,3,9,20]
%9 = div %5 %8 : f32[2,3,9,20]
return %9
)";

inline constexpr const char* kSoftmaxBackward = R"(%0 = input index=0 : f32[2,3,9,20]
%1 = input index=1 : f32[2,3,9,20]
%2 = mul %0 %1 : f32[2,3,9,20]
%3 = reduce %2 kind=sum axes=[3] : f32[2,3,9]
%4 = reshape %3 : f32[2,3,9,1]
%5 = broadcast %4 : f32[2,3,9,20]
%6 = mul %1 %5 : f32[2,3,9,20]
%7 = sub %2 %6 : f32[2,3,9,20]
return %7
)";

// x weight^T + bias, then GELU by erf.
inline constexpr const char* kLinearGelu = R"(%0 = input index=0 : f32[6,10]
%1 = reshape %0 : f32[1,6,10]
%2 = input index=1 : f32[18,10]
%3 = reshape %2 : f32[1,18,10]
%4 = contract %1 %3 : f32[1,6,18]
%5 = reshape %4 : f32[6,18]
%6 = input index=2 : f32[18]
%7 = reshape %6 : f32[1,18]
%8 = broadcast %7 : f32[6,18]
%9 = add %5 %8 : f32[6,18]
%10 = constant value=0.7071067690849304 : f32[]
%11 = reshape %10 : f32[1,1]
%12 = broadcast %11 : f32[6,18]
%13 = mul %9 %12 : f32[6,18]
%14 = erf %13 : f32[6,18]
%15 = constant value=1 : f32[]
%16 = reshape %15 : f32[1,1]
%17 = broadcast %16 : f32[6,18]
%18 = add %14 %17 : f32[6,18]
%19 = mul %9 %18 : f32[6,18]
return %19 %9
)";

}  // namespace trainc::testing
