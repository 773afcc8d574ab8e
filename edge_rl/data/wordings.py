"""The wordings of the arithmetic-with-tool task, in four pools that share no wording. Only text; knows nothing else.

An entry is (form, text); forms are rows of `edge_rl.data.tasks.FORMS`. A slot `{a:112-489}` draws a whole number,
`{p:1.15-9.85}` an amount in steps of 0.05, `{m:month}` a month, which the text names and the code numbers; `{a}`
repeats a drawn value. Slots that a form's code does not use are distractors. All text was written for this project.
"""

HINTED: tuple[tuple[str, str], ...] = (
    ("product", "A concert hall has {a:112-489} rows with {b:13-97} seats each. How many seats are there in all?"),
    (
        "product_add",
        "A shop sells {a:34-98} boxes of {b:112-389} nails and {c:105-980} loose nails. How many nails is that?",
    ),
    (
        "leftover",
        "Rosa has {a:5000-9900} beads and makes {b:23-89} bracelets with {c:17-48} beads each. How many beads remain?",
    ),
    (
        "two_products",
        "A school orders {a:24-97} chairs at {b:35-89} euros and {c:13-49} desks at {d:112-298} euros. What is "
        "the bill?",
    ),
    (
        "sum_list",
        "On four days a museum counted {a:312-989}, {b:312-989}, {c:312-989} and {d:312-989} visitors. How many "
        "came altogether?",
    ),
    (
        "in_out",
        "A depot held {a:2000-9000} tyres, received {b:400-3000} and then shipped {c:500-1900}. How many tyres "
        "are there now?",
    ),
    (
        "remainder",
        "{a:2000-9900} apples are packed into crates of {b:13-97}. How many apples are left after all full crates?",
    ),
    ("quotient", "A ferry takes {b:31-78} cars at a time. How many full ferries do {a:2000-9800} cars make?"),
    ("power", "Work out {a:13-49} to the power of {b:3-5} and give the exact value."),
    ("percent", "A charity passes on {b:13-87} percent of {a:1200-9800} euros. How many euros is that?"),
    (
        "discount",
        "A bicycle costs {a:320-1900} euros. The shop takes {b:6-45} percent off. What is the new price in euros?",
    ),
    (
        "unit_price",
        "{b:6-24} metres of rope cost {c:45-300} euros. What do {a:25-95} metres cost at that rate, in euros?",
    ),
    ("days", "How many days pass from {d1:1-28} {m1:month} {y:2015-2029} to {d2:1-28} {m2:month} {y}?"),
    (
        "count_multiples",
        "How many whole numbers from {a:105-480} to {b:600-1900}, ends included, are divisible by {c:6-29}?",
    ),
    ("sum_range", "Add up every whole number from {a:14-97} to {b:150-980}, both ends included. What is the sum?"),
    (
        "average",
        "A postman brings {a:510-990}, {b:510-990}, {c:510-990} and {d:510-990} letters on four days. "
        "What is the mean per day?",
    ),
    (
        "triple_product",
        "A warehouse has {a:12-48} aisles with {b:14-39} shelves each, and {c:23-95} boxes fit on a shelf. How "
        "many boxes fit in total?",
    ),
    ("minutes", "A rehearsal week took {a:14-96} hours and {b:11-58} minutes. How many minutes is that?"),
)
"""Training, with traces: one wording per skill."""

PLAIN: tuple[tuple[str, str], ...] = (
    (
        "product",
        "Every page of a stamp album shows {a:21-86} stamps. The album has {b:112-340} pages. How many stamps fit?",
    ),
    (
        "product",
        "A farmer plants {a:123-489} rows of carrots, {b:34-98} seeds to a row, in {x:2-9} fields of equal soil. "
        "How many seeds does he use for all rows?",
    ),
    ("price", "Tickets for the aquarium cost {p:6.15-19.85} euros. What does a class of {a:17-33} pay, in euros?"),
    (
        "product_add",
        "A choir sold {a:23-89} tickets at {b:12-48} euros and got {c:130-890} euros in gifts. How much money did "
        "it collect?",
    ),
    (
        "product_add",
        "Each of {a:43-98} tents needs {b:16-38} pegs, and {c:24-99} spare pegs go into the van. How many pegs "
        "are needed?",
    ),
    (
        "leftover",
        "A tank holds {a:4000-9500} litres. {b:23-57} buckets of {c:12-49} litres are taken out. How many litres "
        "stay in it?",
    ),
    (
        "leftover",
        "From a roll of {a:6000-9900} centimetres a tailor cuts {b:21-49} strips of {c:55-118} centimetres. How "
        "many centimetres of cloth are left?",
    ),
    (
        "two_products",
        "At the fair, {a:112-289} adults paid {b:13-28} euros and {c:124-398} children paid {d:5-12} euros. What "
        "were the takings?",
    ),
    (
        "two_products",
        "A cook buys {a:23-79} sacks of rice at {b:24-58} kilos and {c:14-47} sacks of beans at {d:13-38} kilos. "
        "How many kilos is that together?",
    ),
    (
        "sum_list",
        "A lorry drove {a:214-789} km on Monday, {b:214-789} on Tuesday, {c:214-789} on Wednesday and {d:214-789} "
        "on Thursday. What distance is that in km?",
    ),
    ("sum_list", "Find the total of the bills {a:1012-4989}, {b:112-989}, {c:1012-4989} and {d:112-989}."),
    (
        "in_out",
        "Nina's account shows {a:2100-8900} euros. Her wage of {b:1200-3900} comes in and rent of {c:612-1480} "
        "goes out. What is the balance?",
    ),
    (
        "in_out",
        "A library with {a:11000-48000} books buys {b:312-989} and gives away {c:124-890}. How many books does it "
        "own then?",
    ),
    (
        "remainder",
        "{a:1500-8900} marbles are shared equally by {b:17-48} children. How many marbles cannot be shared out?",
    ),
    (
        "remainder",
        "A ribbon {a:3000-9900} millimetres long is cut into pieces of {b:37-95} millimetres. How long is the bit "
        "that is left?",
    ),
    ("quotient", "How many complete boxes of {b:18-96} pencils can be filled with {a:3100-9800} pencils?"),
    ("quotient", "A recipe takes {b:35-95} grams of butter. How many times can you bake it from {a:2100-8900} grams?"),
    ("power", "A lock has {b:4-6} wheels with {a:11-26} letters on each. How many different settings are there?"),
    (
        "doubling",
        "A rumour starts with {a:13-87} people and the number doubles each day. How many know it after {b:6-12} days?",
    ),
    ("percent", "A cheese of {a:1250-4800} grams has {b:17-48} percent fat. How many grams of fat does it hold?"),
    ("percent", "{b:6-39} percent of a field of {a:1300-8900} square metres is under water. What area is under water?"),
    (
        "discount",
        "In the sale a coat of {a:112-489} euros is {b:11-65} percent cheaper. What do you pay for it, in euros?",
    ),
    ("raise", "A rent of {a:412-1480} euros goes up by {b:3-18} percent. What is the new rent in euros?"),
    (
        "unit_price",
        "For {b:5-16} hours of work a plumber asks {c:212-980} euros. What would {a:17-48} hours come to, in euros?",
    ),
    (
        "rate",
        "A machine fills {c:510-4900} jars in {b:6-25} minutes. How many jars does it fill in {a:31-240} minutes?",
    ),
    (
        "days",
        "A letter was sent on {d1:1-28} {m1:month} and answered on {d2:1-28} {m2:month} of the same year, "
        "{y:2015-2029}. How many days lie between?",
    ),
    (
        "days",
        "Lena's course starts on {d1:1-28} {m1:month} {y:2015-2029} and ends on {d2:1-28} {m2:month} {y}. How "
        "many days later is that?",
    ),
    (
        "count_multiples",
        "Lockers are numbered {a:101-390} to {b:700-1900}. Every locker whose number is a multiple of {c:6-23} is "
        "red. How many are red?",
    ),
    ("count_multiples", "Count the multiples of {c:7-34} between {a:110-460} and {b:800-2900}, ends included."),
    (
        "sum_range",
        "Raffle tickets carry the numbers {a:11-89} to {b:130-790}. Someone adds up all these numbers. What does "
        "she get?",
    ),
    ("sum_range", "What do the integers starting with {a:101-290} and ending with {b:400-990} add up to?"),
    (
        "average",
        "A cow gave {a:412-890}, {b:412-890}, {c:412-890} and {d:412-890} litres in four months. How many "
        "litres is that per month on average?",
    ),
    ("average", "Take the four scores {a:212-989}, {b:212-989}, {c:212-989}, {d:212-989} and find their average."),
    (
        "triple_product",
        "A block of stone measures {a:23-89} by {b:34-98} by {c:12-57} centimetres. What is its volume in cubic "
        "centimetres?",
    ),
    (
        "triple_product",
        "{a:12-38} coaches make {b:13-46} trips each and take {c:32-58} guests per trip. How many guests travel?",
    ),
    ("minutes", "A satellite has been up for {a:23-168} hours and {b:11-58} minutes. Give that time in minutes."),
    ("dozens", "A hen house yields {a:34-189} dozen eggs and {b:5-11} single eggs. How many eggs are there?"),
    (
        "count_multiples",
        "How many multiples of {c:6-38} are there from {a:110-490} to {b:700-2900}, both ends included?",
    ),
    (
        "count_multiples",
        "Pages {a:102-380} to {b:500-1400} are printed; each page whose number {c:6-19} divides has a picture. "
        "How many pictures are there?",
    ),
    (
        "count_multiples",
        "Take all integers {a:120-460} to {b:800-1900}. How many of them can be divided by {c:7-29} without a rest?",
    ),
    (
        "count_multiples",
        "Keep those of the numbers {a:101-340} to {b:600-1800} that {c:6-28} divides. How many are kept?",
    ),
    (
        "count_multiples",
        "Rooms {a:103-290} to {b:400-980} get a balcony if {c:4-17} divides the room number. How many balconies "
        "is that?",
    ),
    ("power", "What is {a:13-59} to the power {b:3-5}?"),
    ("power", "How much is {a:12-49} ** {b:3-5}, exactly?"),
    ("power", "A code has {b:4-7} signs, and for each sign there are {a:12-38} possibilities. How many codes exist?"),
    ("power", "A number cube of side {a:23-98}: give {a} to the power of {b:3-3}."),
    (
        "power",
        "Every one of {a:13-39} boxes holds {a} smaller boxes, and so on, {b:4-5} levels deep. How many boxes "
        "are on the last level?",
    ),
    ("power", "A tree splits into {a:3-9} branches at each of {b:5-9} forks. How many tips does it have?"),
    (
        "remainder",
        "{a:1200-9800} pupils ride in buses of {b:32-78}. How many pupils are in the last bus, which is not full?",
    ),
    ("remainder", "{a:2100-8900} coins are put in stacks of {b:13-48}. How many coins are left without a stack?"),
    ("remainder", "Teams of {b:11-29} are formed from {a:1100-5900} players. How many players have no team?"),
    (
        "remainder",
        "{a:1300-8900} photos go into albums that take {b:43-96} each. How many photos are in the album that is "
        "not full?",
    ),
    (
        "remainder",
        "A baker packs {a:2300-7900} rolls by the {b:14-37} in bags. How many rolls do not fit in a full bag?",
    ),
    (
        "remainder",
        "Wine from a vat of {a:3100-9900} cups fills jars of {b:17-67} cups, each {x:12-45} cm high. How many "
        "cups do not fill a jar?",
    ),
    (
        "remainder",
        "{a:2000-9900} beads are threaded on strings of {b:23-98}. How many beads are on the string that is not full?",
    ),
    (
        "percent",
        "A town has {a:1200-9800} voters, and {b:31-87} percent of them voted. How many is that, as a decimal number?",
    ),
    ("percent", "The fee is {b:3-29} percent of a price of {a:1350-9800} euros. What is the fee in euros?"),
    ("percent", "Out of {a:1150-7800} kilos of apples, {b:11-48} percent are rotten. How many kilos are rotten?"),
    ("percent", "Ida puts {b:11-63} percent of her {a:1450-4900} euros into shares. How many euros are in shares?"),
    (
        "percent",
        "A road {a:2100-9900} metres long is paved for {b:13-88} percent of its length. How many metres are paved?",
    ),
    ("percent", "Of the {a:1300-8900} litres in a pool, {b:6-37} percent evaporate. How many litres evaporate?"),
    ("percent", "A tax of {b:12-48} percent is due on {a:1250-9800} euros. What is the tax in euros?"),
    ("leftover", "Take {b:23-78} times {c:24-69} away from {a:6000-9900}. What is the result?"),
    ("leftover", "Kim had {a:3000-9800} euros and paid {b:12-36} rates of {c:52-78} euros. How much money is left?"),
    (
        "leftover",
        "There are {a:4100-9700} seats. {b:23-58} classes of {c:21-34} pupils sit down. How many seats stay free?",
    ),
    (
        "leftover",
        "A printer is loaded with {a:5000-9900} sheets and makes {b:31-92} booklets of {c:24-52} sheets. How "
        "many sheets does it still have?",
    ),
    (
        "leftover",
        "{a:4200-9900} candles are in stock; {b:24-67} churches get {c:36-61} each. How many candles are left in "
        "stock?",
    ),
    (
        "leftover",
        "A {x:3-19}-year-old lorry is loaded with {a:4300-9800} kg and drops {b:18-42} pallets of {c:61-98} kg. "
        "What weight is left, in kg?",
    ),
    (
        "leftover",
        "From {a:5100-9900} grams of tea, {b:28-89} packets of {c:35-56} grams are filled. How many grams remain?",
    ),
    ("sum_range", "Sum the integers from {a:21-99} to {b:210-990}, ends included."),
    ("sum_range", "What is {a:23-98} + ... + {b:170-960}, if every whole number in between is added too?"),
    (
        "sum_range",
        "Day {a:13-49} brings {a} euros, the next day one euro more, and so on to day {b:120-360}. How many "
        "euros is that in all?",
    ),
    ("sum_range", "The cards of a game are numbered {a:14-88} to {b:140-480}. What do all the numbers add up to?"),
    (
        "sum_range",
        "Layers of a pyramid have {a:12-48}, then one more stone each, up to {b:110-290} stones. How many stones "
        "are in it?",
    ),
    ("days", "Count the days from {m1:month} {d1:1-28}, {y:2015-2029} to {m2:month} {d2:1-28}, {y}."),
    (
        "days",
        "A loan starts on {d1:1-28} {m1:month} {y:2015-2029} and is paid on {d2:1-28} {m2:month} {y}. For how "
        "many days does it run?",
    ),
    ("days", "Today is {m1:month} {d1:1-28}, {y:2015-2029}. In how many days comes {m2:month} {d2:1-28}, {y}?"),
    (
        "days",
        "Milk bought on {d1:1-28} {m1:month} {y:2015-2029} keeps until {d2:1-28} {m2:month} {y}. How many days "
        "is that?",
    ),
    (
        "days",
        "In {y:2015-2029} the snow came on {m1:month} {d1:1-28} and went on {m2:month} {d2:1-28}. How many days "
        "later was that?",
    ),
    ("sum_list", "Add up these figures: {a:312-4989}, {b:312-4989}, {c:312-4989} and {d:312-4989}."),
    (
        "sum_list",
        "Eva saved {a:112-989}, {b:112-989}, {c:112-989} and {d:112-989} euros in four years. How much did she "
        "save in all?",
    ),
    (
        "sum_list",
        "The four floors of a library hold {a:1312-8989}, {b:1312-8989}, {c:1312-8989} and {d:1312-8989} books. "
        "How many books are there?",
    ),
    (
        "sum_list",
        "Parcels of {a:213-987}, {b:213-987}, {c:213-987} and {d:213-987} grams lie on a scale. What does the "
        "scale show, in grams?",
    ),
    (
        "sum_list",
        "In the vote, {a:312-2989} people chose red, {b:312-2989} blue, {c:312-2989} green and {d:312-2989} "
        "white. How many people voted?",
    ),
    (
        "sum_list",
        "A film has four parts of {a:1213-4987}, {b:1213-4987}, {c:1213-4987} and {d:1213-4987} seconds. How "
        "long is it, in seconds?",
    ),
    (
        "sum_list",
        "Flour was bought {x:2-6} times, nuts once: bills of {a:112-789}, {b:112-789}, {c:112-789} and "
        "{d:112-789} euros. What do the bills come to?",
    ),
    ("unit_price", "If {b:4-16} pens cost {c:12-96} euros, what is the price of {a:23-88} pens, in euros?"),
    ("unit_price", "{c:36-280} euros buy {b:5-24} bags of cement. How many euros do {a:26-97} bags cost?"),
    ("unit_price", "{b:4-12} nights in a hotel come to {c:212-980} euros. What is the price of {a:13-38} nights?"),
    ("unit_price", "A wire of {b:5-16} metres weighs {c:21-190} grams. How many grams do {a:34-96} metres weigh?"),
    ("unit_price", "At {c:31-240} euros for {b:8-25} square metres of carpet, how much are {a:36-120} square metres?"),
    ("rate", "A baker shapes {c:210-980} rolls in {b:6-24} minutes. At that pace, how many in {a:35-180} minutes?"),
    (
        "rate",
        "A train covers {c:120-960} metres in {b:4-24} seconds. How many metres does it cover in {a:31-150} seconds?",
    ),
    ("rate", "{b:5-24} looms weave {c:110-960} scarves a day. How many scarves do {a:31-98} looms weave?"),
    (
        "product_add",
        "Ben had {c:112-890} stickers. Then he opened {a:23-98} packs of {b:13-48}. How many stickers does he own now?",
    ),
    ("product_add", "Multiply {a:112-489} by {b:13-89}, then add {c:112-980}."),
    (
        "product_add",
        "A taxi ride costs {c:11-29} euros plus {a:12-19} euros for each of {b:21-68} km. What is the fare in euros?",
    ),
    (
        "product_add",
        "{a:31-87} benches seat {b:12-28} people each, and {c:103-480} people stand. How many people are in the hall?",
    ),
    (
        "product_add",
        "An orchard picks {a:34-78} baskets of {b:112-260} pears, and {c:104-760} pears lie on the ground. How "
        "many pears are there together?",
    ),
    (
        "product_add",
        "Leo earns {b:14-39} euros an hour. For {a:112-178} hours and a bonus of {c:105-890} euros, what is his pay?",
    ),
    (
        "product_add",
        "A wall has {a:24-93} rows of {b:41-87} tiles, and {c:102-390} tiles are kept in reserve. How many tiles "
        "were bought?",
    ),
    ("price", "A pair of gloves sells for {p:5.15-24.85} euros. How much do {a:22-89} pairs cost, in euros?"),
    ("price", "Someone buys {a:23-97} notebooks at {p:1.15-7.85} euros apiece. What is the total in euros?"),
    ("price", "One kilo of plums costs {p:2.15-6.95} euros. What must be paid for {a:18-87} kilos, in euros?"),
    ("price", "{a:32-88} guests each pay {p:11.15-29.85} euros for dinner. How many euros does the inn take?"),
    ("product", "Multiply {a:123-890} by {b:23-98} and give the exact result."),
    ("product", "{a:24-89} chickens lay {b:112-310} eggs apiece in a season. What is the total number of eggs?"),
    ("product", "A cinema screen is lit by {a:113-480} panels of {b:36-95} diodes. Give the number of diodes."),
    (
        "product",
        "Anna, {x:21-64}, types {a:34-97} words a minute. How many words does she type in {b:112-240} minutes?",
    ),
    (
        "product",
        "There are {a:114-390} floats in the parade and {b:13-48} dancers on every float. How many dancers take part?",
    ),
    ("product", "In {b:27-88} parks stand {a:112-460} trees each. How many trees is that altogether?"),
    ("product", "A pump moves {a:131-870} litres per hour. What amount does it move in {b:13-72} hours?"),
)
"""Training, without traces: further wordings of the same skills."""

VALIDATION: tuple[tuple[str, str], ...] = (
    ("product", "One bee visits {a:112-490} flowers a day. How many flowers does it visit in {b:14-89} days?"),
    ("price", "One metre of fence is sold at {p:4.15-28.85} euros. Find the price of {a:23-98} metres, in euros."),
    (
        "product_add",
        "Omar saves {a:112-380} euros in each of {b:13-36} months and starts with {c:212-980} euros. What does he "
        "have at the end?",
    ),
    (
        "leftover",
        "Of {a:3000-8900} flyers, {b:18-46} helpers hand out {c:35-64} each. How many flyers are not handed out?",
    ),
    (
        "two_products",
        "{a:23-68} crates weigh {b:34-97} kg each and {c:13-58} barrels weigh {d:112-240} kg each. What is the "
        "whole weight in kg?",
    ),
    (
        "sum_list",
        "Four schools have {a:412-1489}, {b:412-1489}, {c:412-1489} and {d:412-1489} pupils. How many pupils is that?",
    ),
    (
        "in_out",
        "In spring a lake holds {a:12000-48000} fish. {b:1100-6900} hatch and {c:1200-4800} are caught. How many "
        "fish swim in it now?",
    ),
    (
        "remainder",
        "If {a:2100-9900} soldiers line up in rows of {b:23-88}, how many stand in the last, unfinished row?",
    ),
    ("quotient", "With {a:2500-9900} euros, how many chairs at {b:34-97} euros can a club afford?"),
    ("power", "Find the value of {a:12-38} multiplied by itself so that {a} occurs {b:4-5} times as a factor."),
    ("percent", "Of a loan of {a:1150-9800} euros, {b:12-88} percent is paid back. How much is that in euros?"),
    (
        "discount",
        "A phone worth {a:230-980} euros loses {b:14-58} percent of its value. What is it worth now, in euros?",
    ),
    (
        "rate",
        "A printer needs {b:5-24} seconds for {c:110-960} labels. How many labels does it print in {a:45-190} seconds?",
    ),
    (
        "days",
        "A ship leaves on {m1:month} {d1:1-28}, {y:2015-2029}, and is back on {m2:month} {d2:1-28}, {y}. How many "
        "days is it away?",
    ),
    ("count_multiples", "Among the house numbers {a:102-290} to {b:500-990}, how many are multiples of {c:4-19}?"),
    (
        "sum_range",
        "A child writes down all numbers from {a:21-88} up to {b:160-690} and sums them. What is the result?",
    ),
    (
        "average",
        "Four parcels weigh {a:210-980}, {b:210-980}, {c:210-980} and {d:210-980} grams. What is the "
        "average weight in grams?",
    ),
    (
        "triple_product",
        "A box holds {a:14-48} trays, a tray {b:12-36} packs, and a pack {c:16-64} screws. How many screws are in "
        "one box?",
    ),
    ("minutes", "How many minutes are {a:26-190} hours and {b:12-57} minutes?"),
    ("weeks", "A voyage lasts {a:34-180} weeks and {b:2-6} days. How many days is that?"),
    ("raise", "Last year a flat cost {a:512-1690} euros a month, now {b:4-27} percent more. What does it cost now?"),
    (
        "product",
        "A {x:12-78}-year-old painter finishes {a:113-290} tiles a week. How many tiles are done after {b:24-87} "
        "weeks?",
    ),
)
"""Validation: own wordings."""

TEST: tuple[tuple[str, str], ...] = (
    ("product", "A baker puts {a:113-467} raisins into each loaf. How many raisins go into {b:24-89} loaves?"),
    (
        "product",
        "Tom is {x:9-15} and reads {a:34-96} pages every evening. How many pages has he read after {b:112-360} "
        "evenings?",
    ),
    ("product", "Each lamp in a street burns {a:214-890} kilowatt hours a year. What do all its {b:37-94} lamps use?"),
    ("price", "Petrol stands at {p:1.15-2.45} euros a litre. What do {a:31-78} litres cost, in euros?"),
    (
        "product_add",
        "Mia's phone plan is {a:14-48} euros a month for {b:13-47} months, plus {c:105-690} euros for the phone. "
        "What is the full cost?",
    ),
    (
        "product_add",
        "{a:26-88} vans bring {b:113-287} newspapers each, and a courier adds {c:111-870}. How many newspapers arrive?",
    ),
    (
        "leftover",
        "A runner must cover {a:9000-19900} metres and has done {b:14-21} laps of {c:390-420} metres. How many "
        "metres are still to go?",
    ),
    (
        "leftover",
        "Out of {a:4500-9800} bricks, {b:32-67} walls take {c:42-65} bricks each. How many bricks are unused?",
    ),
    (
        "leftover",
        "A kitchen in house {x:11-99} has {a:5100-9700} grams of flour and makes {b:24-39} pizzas from {c:95-129} "
        "grams each. How much flour is over?",
    ),
    (
        "two_products",
        "Jonas works {a:112-187} hours at {b:16-29} euros and {c:13-48} hours of overtime at {d:31-45} euros. "
        "What does he earn?",
    ),
    (
        "two_products",
        "A zoo feeds {a:14-39} lions {b:41-78} kg a week each and {c:23-57} wolves {d:12-29} kg each. How many kg "
        "of meat is that?",
    ),
    (
        "sum_list",
        "Ticket sales were {a:1105-3980}, {b:1105-3980}, {c:1105-3980} and {d:1105-3980} at the four gates. How "
        "many tickets were sold?",
    ),
    (
        "sum_list",
        "A hiker climbs {a:212-890} m, {b:212-890} m, {c:212-890} m and {d:212-890} m on four tours. What is the "
        "overall climb?",
    ),
    (
        "in_out",
        "A train sets off with {a:412-980} passengers; {b:112-390} get on and {c:113-378} get off on the way. How "
        "many reach the terminus?",
    ),
    (
        "in_out",
        "The village had {a:5100-19800} inhabitants. Since then {b:312-980} moved in and {c:205-790} left. How "
        "many live there today?",
    ),
    (
        "remainder",
        "Eggs are sold in cartons of {b:13-36}. A farm collects {a:2300-9700} eggs. How many eggs stay outside "
        "full cartons?",
    ),
    ("remainder", "What is left over when {a:3000-19000} is divided by {b:34-189}?"),
    (
        "remainder",
        "A gardener sets {a:1800-7900} bulbs in beds of {b:27-84}; each bed is {x:2-8} metres wide. How many "
        "bulbs do not make up a full bed?",
    ),
    ("quotient", "A film reel runs {b:23-88} seconds. How many whole reels fit into {a:2900-9800} seconds?"),
    (
        "quotient",
        "Grandma knits a scarf from {b:112-190} metres of wool. How many scarves does {a:3000-9900} metres give?",
    ),
    ("power", "Compute {a:14-57} raised to the exponent {b:3-5}, without rounding."),
    ("power", "A quiz has {b:5-9} questions with {a:3-8} choices each. In how many ways can the sheet be filled in?"),
    (
        "doubling",
        "A colony of {a:112-890} bacteria doubles every hour. How many bacteria are there after {b:5-11} hours?",
    ),
    ("tripling", "Each week the {a:13-78} members of a chain treble. How many members are there after {b:4-8} weeks?"),
    ("percent", "How much is {b:13-94} percent of {a:1250-8900}?"),
    (
        "percent",
        "A rod of {a:1200-5900} millimetres is {b:12-68} percent copper by length. How many millimetres are copper?",
    ),
    (
        "percent",
        "Of {a:2300-9700} litres of milk, {b:11-79} percent become cheese. How many litres are used for cheese?",
    ),
    (
        "discount",
        "Paying in cash saves {b:3-24} percent on a sofa of {a:430-1980} euros. What is the cash price in euros?",
    ),
    ("raise", "A salary of {a:1850-4900} euros is raised by {b:2-17} percent. What is it afterwards, in euros?"),
    ("unit_price", "{b:6-24} kilos of cherries are {c:32-190} euros. How many euros do you need for {a:27-88} kilos?"),
    (
        "unit_price",
        "A car uses {c:24-90} litres for {b:4-15} trips. How many litres are needed for {a:23-98} such trips?",
    ),
    (
        "days",
        "School closes on {d1:1-28} {m1:month} {y:2015-2029}; the exam is on {d2:1-28} {m2:month} {y}. How many "
        "days does that leave?",
    ),
    ("days", "Between {m1:month} {d1:1-28} and {m2:month} {d2:1-28} in the year {y:2015-2029}, how many days go by?"),
    (
        "days",
        "Seeds were sown on {d1:1-28} {m1:month} {y:2015-2029} and picked on {d2:1-28} {m2:month} {y}. How many "
        "days did they grow?",
    ),
    (
        "count_multiples",
        "Buses come at every minute divisible by {c:6-18}. How many come from minute {a:102-280} to minute "
        "{b:600-1380}, both included?",
    ),
    (
        "count_multiples",
        "How many numbers in the range {a:130-470} to {b:900-3900} (inclusive) leave no remainder with {c:6-37}?",
    ),
    ("sum_range", "Calculate the sum of the whole numbers {a:16-95} through {b:140-880}."),
    (
        "sum_range",
        "Each row of a stadium has as many seats as its row number says. How many seats are there in rows "
        "{a:12-60} to {b:90-240}?",
    ),
    (
        "average",
        "A shop took {a:305-980}, {b:305-980}, {c:305-980} and {d:305-980} euros in four weeks. What was "
        "the weekly average?",
    ),
    (
        "average",
        "Four hills are {a:312-989}, {b:312-989}, {c:312-989} and {d:312-989} metres high. What is their mean height?",
    ),
    (
        "triple_product",
        "A tower has {a:13-49} floors, {b:14-38} flats per floor and {c:12-29} windows per flat. How many windows "
        "have to be cleaned?",
    ),
    (
        "triple_product",
        "{a:14-38} teams of {b:11-27} players drink {c:23-64} cups of water each. How many cups are drunk?",
    ),
    ("minutes", "An old film archive holds {a:34-260} hours {b:11-58} minutes of tape. Express this in minutes."),
    ("dozens", "Buns come by the dozen: {a:43-190} dozen are ordered, and {b:3-11} extra. How many buns is that?"),
    ("hours", "A drill runs for {a:23-98} days and {b:5-22} hours without a stop. How many hours is that?"),
    (
        "price",
        "A metre of silk ribbon is {p:2.35-9.85} euros. Nora needs {a:23-87} metres. How much does she pay, in euros?",
    ),
    (
        "price",
        "The fee for a castle tour is {p:4.35-17.65} euros a head. How much do {a:26-74} visitors bring in, in euros?",
    ),
    (
        "sum_list",
        "A sailor's trips took {a:211-879}, {b:211-879}, {c:211-879} and {d:211-879} hours. How long was he at "
        "sea, in hours?",
    ),
    ("power", "Let x be {a:12-47}. Determine x ** {b:3-5}."),
    (
        "product_add",
        "A bakery bakes {a:23-79} trays with {b:24-68} biscuits per tray and has {c:104-590} from yesterday. How "
        "many has it now?",
    ),
)
"""Test: own wordings; read by evaluation only."""
