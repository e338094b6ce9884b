# A Release build has what Debian and Ubuntu want of programs that read what
# strangers send: checks of lengths in the C library, a protector of the stack,
# and addresses that are bound at the start and then read-only. Every Release
# build, and not packages alone: what is tested is what is shipped.
include(CheckPIESupported)
check_pie_supported()
set(hardening -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong
  -fstack-clash-protection)
string(REPLACE ";" "," hardening_by_nvcc "${hardening}")
add_compile_options(
  "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:C>>:${hardening}>"
  "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CUDA>>:-Xcompiler=${hardening_by_nvcc}>")
add_link_options("$<$<CONFIG:Release>:-Wl,-z,relro,-z,now>")
