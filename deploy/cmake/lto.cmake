# Link-time optimisation of the daemon in a Release build: a small call runs
# through some 200 functions of five libraries. Link roped_lto PRIVATE to what
# the daemon is made of, and set ROPED_LTO on the executable. Whatever else
# links these objects takes them as they are compiled, which is faster: they
# hold both forms.
set(has_lto $<AND:$<CONFIG:Release>,$<C_COMPILER_ID:GNU>>)
set(links_lto $<BOOL:$<TARGET_PROPERTY:ROPED_LTO>>)
add_library(roped_lto INTERFACE)
target_compile_options(roped_lto INTERFACE
  $<$<AND:${has_lto},$<COMPILE_LANGUAGE:C>>:-flto=auto;-ffat-lto-objects>)
add_link_options(
  $<$<AND:${has_lto},$<LINK_LANGUAGE:C>>:$<IF:${links_lto},-flto=auto,-fno-lto>>)
